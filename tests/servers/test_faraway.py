"""A server on another machine, over a real sshd on loopback: started, reached, followed and stopped."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_server import chat_server, profile_file
from loopback_sshd import LACKING, Sshd
from refusals import mentions, refused
from small_server import SERVER

from vlmconsole.desks.servers import bring
from vlmconsole.engines.http import EngineError
from vlmconsole.engines.profile import ProfileError, ServerProfile, make_profile
from vlmconsole.remote.ssh import CONFIG_VARIABLE, SshError
from vlmconsole.runs.places import Places
from vlmconsole.servers import far as faraway
from vlmconsole.servers import servers
from vlmconsole.servers.processes import LaunchError, free_port

needs_sshd = pytest.mark.skipif(bool(LACKING), reason=LACKING)


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    machine = Sshd(tmp_path_factory.mktemp("sshd"))
    machine.start()
    yield machine
    machine.stop()


@pytest.fixture
def places(tmp_path: Path, far: Sshd, monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    monkeypatch.setenv(CONFIG_VARIABLE, str(far.config))
    yield Places(tmp_path / "lab").ensure()
    faraway.close_tunnels()


def box(far: Sshd, how: str = "kind", **more: object) -> ServerProfile:
    launch = {
        "argv": ["python", "-c", SERVER, "{port}", "0.2", how],
        "interpreter": sys.executable,
        "start_timeout_s": 30,
        "stop_grace_s": 5,
    }
    values = {"base_url": f"http://127.0.0.1:{free_port()}", "ssh_host": far.alias, "launch": launch, **more}
    return make_profile({"name": f"box-{how}", "engine": "openai", **values})


def test_the_words_that_start_it_there() -> None:
    profile = make_profile(
        {
            "name": "gpu",
            "engine": "sglang",
            "base_url": "http://127.0.0.1:30000",
            "model": "./models/Qwen",
            "ssh_host": "gpu-box",
            "launch": {"argv": ["python", "-m", "x", "--model-path", "{model}", "--port", "{port}"],
                       "interpreter": "env:sglang", "folder": "~", "extra": ["--more"]},
        }
    )  # fmt: skip
    words, folder = faraway.command(profile)
    assert words[0] == "~/.local/share/vlmconsole/environments/sglang/bin/python"
    assert words[1:] == ["-m", "x", "--model-path", "./models/Qwen", "--port", "30000", "--more"]
    assert folder == "~/"
    with refused("launch-missing", "launch.argv", error=ProfileError):
        faraway.command(profile.model_copy(update={"launch": None}))
    assert faraway.is_far(profile)
    assert not faraway.is_far(profile.at("http://10.0.0.7:30000")), "reached directly, without a tunnel"


@needs_sshd
@pytest.mark.slow
async def test_it_is_started_there_reached_through_one_tunnel_and_stopped(far: Sshd, places: Places) -> None:
    profile = box(far, price_per_hour=3.5)
    assert (await servers.probe(profile, places)).state == "stopped"
    with pytest.raises(EngineError, match="servers start box-kind"):
        await servers.ensure_server(profile, places)
    phases: list[str] = []
    ready = await bring(profile, places, lambda phase, _: phases.append(phase))
    assert ready.started_here and ready.model == "served"
    assert phases[0] == "connecting to far-box" and phases[-1] == "ready"
    assert ready.profile.ssh_host and ready.base_url != profile.base_url, "asked at the tunnel's own port"

    again = await servers.ensure_server(ready.profile, places)
    assert again.base_url == ready.base_url, "a profile at its tunnel's address needs no second tunnel"
    assert not (await bring(profile, places)).started_here
    known = await servers.probe(profile, places)
    assert known.state == "ready" and known.since is not None
    faraway.fetch_log(profile, places)
    assert faraway.log_copy(places, profile.name).read_text() == "phase one\nphase two\n"
    faraway.fetch_log(profile, places)
    assert faraway.log_copy(places, profile.name).read_text() == "phase one\nphase two\n", "nothing comes twice"

    faraway.close_tunnels()
    assert (await servers.probe(profile, places)).state == "ready", "it goes on without console and tunnel"
    said = await servers.stop_server(profile, places)
    assert mentions(said, "ended", "far-box", "billed")
    assert (await servers.probe(profile, places)).state == "stopped"
    assert "not running" in await servers.stop_server(profile, places)


@needs_sshd
@pytest.mark.slow
async def test_what_ends_while_starting_says_why_with_its_log(far: Sshd, places: Places) -> None:
    with pytest.raises((LaunchError, SshError), match="no such weights: /models/gone"):
        await asyncio.wait_for(bring(box(far, "dies"), places), 60)


@needs_sshd
async def test_a_machine_that_is_away_is_the_servers_state(places: Places, tmp_path: Path) -> None:
    profile = make_profile(
        {"name": "gone", "engine": "vllm", "base_url": "http://127.0.0.1:30000", "ssh_host": "127.0.0.1:1"}
    )
    status = await servers.probe(profile, places)
    assert status.state == "unreachable" and "refuses the connection" in status.why


@needs_sshd
@pytest.mark.parametrize("more", [pytest.param([], marks=pytest.mark.slow), ["--json"], ["--adapter", "some"]])
async def test_chat_goes_through_the_tunnel_and_nowhere_else(
    far: Sshd, places: Places, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    """A server that answers at the same address *here* is another one: it must not be asked in the far one's name."""
    async with chat_server() as server:
        profile_file(places.home, server.port, "box", ssh_host=far.alias, served_model="toy")
        words = ["chat", "Hello", "--server", "box", *more]
        if not more or more == ["--json"]:  # here the loopback machine is the far one too: asked through ssh
            code, out, err = await command(places, *words)
            assert code == 0, err
            assert "Three red circles." in out and len(server.requests) == 1
            assert not more or json.loads(out)["conditions"]["route"] == "tunnel"
            server.requests.clear()
        monkeypatch.setenv(CONFIG_VARIABLE, str(far.write_config("shut", port=9)))
        code, out, err = await command(places, *words)
        assert code == 1 and "refuses the connection" in err + out
        assert server.requests == []


async def command(places: Places, *words: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "vlmconsole", "--home", str(places.home), *words,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode or 0, out.decode(), err.decode()
