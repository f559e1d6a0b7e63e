"""Starting, sharing and ending server processes: on small real ones, which need no model."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from refusals import mentions, refused
from small_server import SERVER, profile

from vlmconsole.engines.interpreters import interpreter_path
from vlmconsole.engines.profile import ProfileError, make_profile
from vlmconsole.runs.places import Places
from vlmconsole.servers import processes as launch
from vlmconsole.servers.processes import LaunchError
from vlmconsole.servers.server import Ready
from vlmconsole.servers.where import server_of
from vlmconsole.system import processes


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(home=tmp_path / "lab").ensure()


def gone(pid: int) -> bool:
    return processes.started(pid) is None


async def test_start_use_and_stop_with_nothing_left_behind(places: Places) -> None:
    told: list[str] = []
    ready = await server_of(profile(), places).ensure(lambda phase, _: told.append(phase))
    try:
        running = launch.recorded(places, "box")
        assert running is not None and running.alive and ready.pid == running.pid
        assert (ready.model, ready.started_here) == ("served", True)
        assert os.getsid(running.pid) == running.pid != os.getsid(0)  # its own session: it outlives ours
        family = launch.members(running)
        assert len(family) == 2
        assert (await server_of(profile(), places).probe()).state == "ready"
        assert told[0] == "starting python" and told[-1] == "ready"
    finally:
        assert await server_of(profile(), places).stop() == "ended"
    assert all(gone(pid) for pid in family)
    assert server_of(profile(), places).status().state == "stopped"
    assert not launch.port_answers(running.port)
    assert await server_of(profile(), places).stop() == "was not running"


@pytest.mark.parametrize("record", ["", "{ not json", '{"pid": 1}', None])
async def test_a_server_is_found_again_when_its_record_is_lost(places: Places, record: str | None) -> None:
    first = await server_of(profile(), places).ensure()
    before = launch.recorded(places, "box")
    assert before is not None
    family = launch.members(before)
    state = launch.folder(places) / "box.json"

    def damage() -> None:
        state.unlink() if record is None else state.write_text(record)

    try:
        damage()
        again = await server_of(profile(), places).ensure()
        assert (again.pid, again.base_url, again.started_here) == (first.pid, first.base_url, False)
        mended = launch.recorded(places, "box")
        assert mended is not None and (mended.pid, mended.started, mended.port) == (
            before.pid, before.started, before.port,
        )  # fmt: skip
        damage()
        if record is not None:
            assert (await server_of(profile(), places).probe()).pid == first.pid
        assert await server_of(profile(), places).stop() == "ended"
        assert all(gone(pid) for pid in family) and not state.exists()
    finally:
        await launch.end(before)


async def test_a_damaged_record_of_no_server_is_said_and_removed(places: Places) -> None:
    (launch.folder(places) / "box.json").write_text("")
    assert mentions(await server_of(profile(), places).stop(), "not running", "damaged", "removed")
    assert await server_of(profile(), places).stop() == "was not running"


async def test_several_consoles_at_once_share_one_server(places: Places) -> None:
    calls = [server_of(profile(delay=0.3), places).ensure() for _ in range(4)]
    # A console is a process of its own: one of the callers is.
    code = (
        "import asyncio, sys; from pathlib import Path\n"
        "from vlmconsole.engines.profile import make_profile\n"
        "from vlmconsole.servers.where import server_of\n"
        "from vlmconsole.runs.places import Places\n"
        "import json; p = make_profile(json.loads(sys.argv[2]))\n"
        "print(asyncio.run(server_of(p, Places(home=Path(sys.argv[1]))).ensure()).pid)\n"
    )
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(places.home), profile(delay=0.3).model_dump_json(),
        stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        ready: list[Ready] = list(await asyncio.gather(*calls))
        output, _ = await asyncio.wait_for(other.communicate(), 30)
        assert {r.pid for r in ready} == {int(output)}
        # At most one of the five started it, and it goes on after that console's process has ended.
        assert sum(r.started_here for r in ready) <= 1
        assert (await server_of(profile(), places).probe()).state == "ready"
    finally:
        await server_of(profile(), places).stop()


async def test_a_server_that_dies_at_its_start_is_reported_with_its_log(places: Places) -> None:
    with pytest.raises(LaunchError, match="ended while starting") as caught:
        await server_of(profile(how="dies"), places).ensure()
    assert "no such weights: /models/gone" in str(caught.value) and "box.log" in str(caught.value)
    assert server_of(profile(), places).status().state == "stopped"


async def test_a_slow_start_is_a_time_out_and_leaves_nothing(places: Places) -> None:
    with refused("start-timeout", "1 s", error=LaunchError):
        await server_of(profile(delay=30, start_timeout_s=1), places).ensure()
    assert launch.recorded(places, "box") is None


async def test_a_stubborn_server_is_killed_after_the_grace_period(places: Places) -> None:
    slow = profile(how="stubborn", stop_grace_s=0.5)
    await server_of(slow, places).ensure()
    running = launch.recorded(places, "box")
    assert running is not None
    family = launch.members(running)
    assert await server_of(slow, places).stop() == "killed"
    assert all(gone(pid) for pid in family)


async def test_kill_9_is_noticed_and_the_next_call_starts_anew(places: Places) -> None:
    first = await server_of(profile(), places).ensure()
    running = launch.recorded(places, "box")
    assert first.pid is not None and running is not None
    orphans = [pid for pid in launch.members(running) if pid != first.pid]
    os.kill(first.pid, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while server_of(profile(), places).status().state != "ended" and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    assert "ended by itself" in server_of(profile(), places).status().why
    second = await server_of(profile(), places).ensure()
    try:
        assert second.pid != first.pid and second.started_here
        assert all(gone(pid) for pid in orphans)  # what the dead server left in its session was ended first
    finally:
        await server_of(profile(), places).stop()


async def test_a_reused_pid_is_not_our_server(places: Places) -> None:
    await server_of(profile(), places).ensure()
    running = launch.recorded(places, "box")
    assert running is not None
    stranger = replace(running, pid=os.getpid())
    assert not stranger.alive and launch.members(stranger) == []
    assert await launch.end(stranger) == "had ended already"  # and we still live
    await server_of(profile(), places).stop()


async def test_a_stolen_port_is_told_from_our_own(places: Places) -> None:
    with socket.socket() as thief:
        thief.bind(("127.0.0.1", 0))
        thief.listen()
        port = thief.getsockname()[1]
        argv = ["python", "-c", SERVER, str(port), "0", "kind", "--port", str(port)]
        fixed = make_profile({"name": "box", "engine": "openai", "launch": {"argv": argv}})
        with refused("port-taken", f"port {port}", error=LaunchError):
            await server_of(fixed, places).ensure()
        running = launch.spawn(places, "box", ["sleep", "30"], port=port, env={})
        try:
            assert launch.port_owner(running) == "other"
        finally:
            await launch.end(running)
    running = launch.spawn(places, "box", ["sleep", "30"], port=launch.free_port(), env={})
    assert launch.port_owner(running) == "nobody"
    await launch.end(running)


async def test_a_torn_or_foreign_record_counts_as_none(places: Places) -> None:
    for text in ("", "{", '{"pid": 1}', "[]"):
        (launch.folder(places) / "box.json").write_text(text)
        assert launch.recorded(places, "box") is None
    assert server_of(profile(), places).status().state == "stopped"


async def test_a_missing_program_or_interpreter_is_one_line(places: Places) -> None:
    missing = make_profile({"name": "box", "engine": "openai", "launch": {"argv": ["/no/such/server"]}})
    with refused("program-missing", "profile box", "/no/such/server", error=ProfileError):
        await server_of(missing, places).ensure()
    with refused("environment-missing", "env make sglang", error=ProfileError):
        interpreter_path("env:sglang", places)
    assert interpreter_path("", places) == sys.executable


async def test_a_server_elsewhere_is_only_reached(places: Places) -> None:
    far = make_profile({"name": "far", "engine": "openai", "base_url": "http://127.0.0.1:9"})
    assert (await server_of(far, places).probe()).state == "unreachable"
    with refused("server-foreign", "far", error=LaunchError):
        await server_of(far, places).stop()


def test_phases_and_log_tail(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("a one\nb two\n\x1b[31mred Bearer abc\n")
    assert launch.phase_of(str(log), (("one", "first"), ("two", "second"))) == "second"
    assert launch.phase_of(str(tmp_path / "none"), ()) == "starting python"
    said = launch.tail(str(log))
    assert "\x1b" not in said and "abc" not in said and str(log) in said
    log.write_text('Traceback (most recent call last):\n  File "x.py", line 1\n    run()\nValueError: no weights\n')
    assert "ValueError: no weights" in launch.tail(str(log)) and "x.py" not in launch.tail(str(log))
