"""The key of each start: SGLang's and vLLM's, here and on another machine; and servers that have none."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest
from keyed_server import SERVER, sglang_python
from loopback_sshd import LACKING, Sshd
from small_server import profile as plain

from vlmconsole.cli import main
from vlmconsole.engines.http import EngineError
from vlmconsole.engines.profile import ServerProfile, load_profiles, make_profile
from vlmconsole.engines.readback import readback
from vlmconsole.engines.registry import find_engine
from vlmconsole.queue.served import start_served
from vlmconsole.remote.ssh import CONFIG_VARIABLE
from vlmconsole.runs.places import Places
from vlmconsole.servers import keys, processes
from vlmconsole.servers.far import close_tunnels
from vlmconsole.servers.here import Here
from vlmconsole.servers.where import server_of


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "lab").ensure()


def served(engine: str, folder: Path, **more: object) -> ServerProfile:
    if engine == "sglang":
        argv = ["python", "-m", "sglang.launch_server", "--port", "{port}"]
    else:
        argv = ["python", "-c", SERVER, "--port", "{port}"]
    given = {"argv": argv, "interpreter": sglang_python(folder), "start_timeout_s": 30, "stop_grace_s": 5}
    return make_profile({"name": "box", "engine": engine, "launch": given, **more})


def nowhere(key: str, places: Places, *pids: int) -> None:
    """The key is in its own file of the home, and in no log, record or launch line."""
    holding = [path for path in places.home.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]
    assert [path.suffix for path in holding] == [".key"]
    for pid in pids:
        assert key not in " ".join(psutil.Process(pid).cmdline())


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
async def test_a_server_asks_for_a_key_of_its_own_start(engine: str, places: Places, tmp_path: Path) -> None:
    box = served(engine, tmp_path)
    ready = await server_of(box, places).ensure()
    try:
        key, running = ready.profile.api_key(), processes.recorded(places, "box")
        assert key is not None and running is not None and ready.model == "served"
        nowhere(key, places, *processes.members(running))
        with pytest.raises(EngineError, match="401"):
            await readback(box.at(ready.base_url))
        told = await readback(ready.profile)
        assert key not in json.dumps(asdict(told)), "SGLang tells its key; it is not taken in"
        assert (await server_of(box, places).probe()).state == "ready"
        log = Path(running.log).read_text()
        assert engine != "sglang" or "api_key='•••'" in log
    finally:
        await server_of(box, places).stop()
    assert not list(processes.folder(places).glob("*.key"))
    again = await server_of(box, places).ensure()
    try:
        assert again.profile.api_key() not in (None, key)
    finally:
        await server_of(box, places).stop()


@pytest.mark.parametrize("key", ["", "a-wrong-one"])
async def test_a_server_that_refuses_the_key_is_there(
    key: str, places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("A_KEY", key or "unused")
    ready = await server_of(served("vllm", tmp_path), places).ensure()
    try:
        named = 'api_key_env = "A_KEY"\n' if key else ""
        other = Places(tmp_path / "other").ensure()  # in its own home it would be found by its address
        (other.servers / "given.toml").write_text(f'engine = "vllm"\nbase_url = "{ready.base_url}"\n{named}')
        given = load_profiles(other.servers)["given"]
        status = await server_of(given, other).probe()
        assert (status.word, status.state, status.answered) == ("key refused", "unreachable", True)
        assert "401" in status.why and "api_key_env" in status.why and (key or "unused") not in status.why

        def shown(*words: str) -> str:
            with pytest.raises(SystemExit) as ended:
                main(["--home", str(other.home), *words])
            assert ended.value.code == 1 or words[1] == "list"
            return capsys.readouterr().out

        assert "key refused" in await asyncio.to_thread(shown, "servers", "show", "given")
    finally:
        await server_of(served("vllm", tmp_path), places).stop()


def read_only(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command in a mount namespace of its own, where nobody can write into the home, root neither."""
    script = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'
    command = [sys.executable, "-m", "vlmconsole", "--home", str(home), *words]
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", str(home), *command],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
@pytest.mark.parametrize(
    "words", [["list"], *(pytest.param(w, marks=pytest.mark.slow) for w in (["show", "demo"], ["list", "--json"]))]
)
def test_a_home_that_cannot_be_written_can_be_read(words: list[str], places: Places) -> None:
    done = read_only(places.home, "servers", *words)
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip("mounting is not allowed here")
    assert done.returncode == (1 if words[0] == "show" else 0), done.stderr
    assert "demo" in done.stdout and "Read-only" not in done.stderr
    start = read_only(places.home, "servers", "start", "demo")
    assert start.returncode == 1 and "Read-only file system" in start.stderr and "Traceback" not in start.stderr


async def test_the_users_own_key_goes_before_a_made_one(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWN_KEY", "a-key-of-the-users-own")
    box = served("vllm", tmp_path, api_key_env="OWN_KEY")
    ready = await server_of(box, places).ensure()
    try:
        assert ready.profile.api_key() == "a-key-of-the-users-own" and ready.profile.access.key_file is None
        assert not list(processes.folder(places).glob("*.key"))
    finally:
        await server_of(box, places).stop()


async def test_a_server_of_an_older_version_is_still_known_and_stopped(places: Places) -> None:
    """Its record has no key, and it asks for none."""
    ready = await server_of(plain(), places).ensure()  # a generic server: it is given no key either
    try:
        state = processes.folder(places) / "box.json"
        record = json.loads(state.read_text())
        assert record.pop("key_file") == ""
        state.write_text(json.dumps(record))
        found = await server_of(plain(), places).ensure()
        assert (found.pid, found.started_here, found.profile.api_key()) == (ready.pid, False, None)
        assert (await server_of(plain(), places).probe()).state == "ready"
    finally:
        assert await server_of(plain(), places).stop() == "ended"


def test_which_lines_take_a_key() -> None:
    def given(engine: str, *words: str) -> bool:
        return find_engine(engine).takes_key(words)

    assert given("sglang", "python", "-m", "sglang.launch_server", "--port", "1") and given("mlx", "python", "x.py")
    assert given("vllm", "vllm", "serve", "m") and not given("vllm", "vllm", "serve", "m", "--api-key", "of-the-user")
    assert not given("vllm", "vllm", "--api-key=x") and not given("openai", "anything")
    assert not given("sglang", "my-sglang", "--port", "1"), "a start line of the user's own is run as it is"


def test_a_new_key_leaves_those_of_other_servers(tmp_path: Path) -> None:
    _, mine = keys.new_key(tmp_path, "a")
    _, other = keys.new_key(tmp_path, "a.b")
    _, far = keys.new_key(tmp_path, "a.far")
    first, again = keys.new_key(tmp_path, "a")
    assert not mine.exists() and other.exists() and far.exists() and again.read_text().strip() == first
    assert again.stat().st_mode & 0o777 == 0o600


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sshd]:
    (tmp_path / "sshd").mkdir()
    machine = Sshd(tmp_path / "sshd")
    machine.start()
    monkeypatch.setenv(CONFIG_VARIABLE, str(machine.config))
    yield machine
    close_tunnels()
    machine.stop()


@pytest.mark.slow
@pytest.mark.skipif(bool(LACKING), reason=LACKING)
async def test_on_another_machine_the_key_comes_by_no_launch_line(far: Sshd, places: Places, tmp_path: Path) -> None:
    at = {"base_url": f"http://127.0.0.1:{processes.free_port()}", "ssh_host": far.alias}
    box = served("sglang", tmp_path, **at)
    ready = await start_served(box, places)
    try:
        key = ready.profile.api_key()
        assert key is not None and ready.started_here
        assert not [p.pid for p in psutil.process_iter(["cmdline"]) if key in " ".join(p.info["cmdline"] or ())]
        kept = [p for p in far.home.rglob("*") if p.is_file() and key in p.read_text("utf-8", "replace")]
        assert kept == [], "in no file there"
        server_of(box, places).fetch_log()
        nowhere(key, places)
        assert (await server_of(box, places).probe()).state == "ready"
    finally:
        await server_of(box, places).stop()
    assert not list(processes.folder(places).glob("*.key"))


async def test_one_that_was_started_without_a_key_is_named_as_open(places: Places, tmp_path: Path) -> None:
    """As an older version left it running: it goes on to be used, and whoever looks reads what to do."""
    box = served("vllm", tmp_path)
    ready = await server_of(box, places).ensure()
    try:
        assert (await server_of(box, places).probe()).why == ""
        state = processes.folder(places) / "box.json"
        own = make_profile({"name": "box", "engine": "vllm", "launch": box.launch, "api_key_env": "A_KEY"})
        record = json.loads(state.read_text())
        record["key_file"] = ""
        state.write_text(json.dumps(record))
        assert ready.profile.api_key() is not None
        assert Here(box, places).is_open() and not Here(own, places).is_open()
    finally:
        await server_of(box, places).stop()
