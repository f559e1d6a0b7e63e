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

from vlmconsole.engines.http import EngineError
from vlmconsole.engines.profile import ProfileError, ServerProfile, make_profile
from vlmconsole.queue.served import start_served
from vlmconsole.remote.ssh import CONFIG_VARIABLE, SshError
from vlmconsole.runs.places import Places
from vlmconsole.servers.far import Far, close_tunnels
from vlmconsole.servers.given import Given
from vlmconsole.servers.processes import LaunchError, free_port
from vlmconsole.servers.where import server_of

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
    close_tunnels()


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
    server = server_of(profile, Places(Path("/nowhere")))
    assert isinstance(server, Far)
    words, folder = server.command()
    assert words[0] == "~/.local/share/vlmconsole/environments/sglang/bin/python"
    assert words[1:] == ["-m", "x", "--model-path", "./models/Qwen", "--port", "30000", "--more"]
    assert folder == "~/"
    with refused("launch-missing", "launch.argv", error=ProfileError):
        Far(profile.model_copy(update={"launch": None}), server.places).command()
    direct = server_of(profile.at("http://10.0.0.7:30000"), server.places)
    assert isinstance(direct, Given), "reached directly, without a tunnel"


@needs_sshd
@pytest.mark.slow
async def test_it_is_started_there_reached_through_one_tunnel_and_stopped(far: Sshd, places: Places) -> None:
    profile = box(far, price_per_hour=3.5)
    assert (await server_of(profile, places).probe()).state == "stopped"
    with pytest.raises(EngineError, match="servers start box-kind"):
        await server_of(profile, places).ensure()
    phases: list[str] = []
    ready = await start_served(profile, places, lambda phase, _: phases.append(phase))
    assert ready.started_here and ready.model == "served"
    assert phases[0] == "connecting to far-box" and phases[-1] == "ready"
    assert ready.profile.ssh_host and ready.base_url != profile.base_url, "asked at the tunnel's own port"

    again = await server_of(ready.profile, places).ensure()
    assert again.base_url == ready.base_url, "a profile at its tunnel's address needs no second tunnel"
    assert not (await start_served(profile, places)).started_here
    known = await server_of(profile, places).probe()
    assert known.state == "ready" and known.since is not None
    server = server_of(profile, places)
    assert server.fetch_log().read_text() == "phase one\nphase two\n"
    server.fetch_log()
    assert server.log.read_text() == "phase one\nphase two\n", "nothing comes twice"

    close_tunnels()
    assert (await server_of(profile, places).probe()).state == "ready", "it goes on without console and tunnel"
    said = await server_of(profile, places).stop()
    assert mentions(said, "ended", "far-box", "billed")
    assert (await server_of(profile, places).probe()).state == "stopped"
    assert mentions(await server_of(profile, places).stop(), "not running", "far-box")


@needs_sshd
@pytest.mark.slow
async def test_what_ends_while_starting_says_why_with_its_log(far: Sshd, places: Places) -> None:
    with pytest.raises((LaunchError, SshError), match="no such weights: /models/gone"):
        await asyncio.wait_for(start_served(box(far, "dies"), places), 60)


@needs_sshd
async def test_a_machine_that_is_away_is_the_servers_state(places: Places, tmp_path: Path) -> None:
    profile = make_profile(
        {"name": "gone", "engine": "vllm", "base_url": "http://127.0.0.1:30000", "ssh_host": "127.0.0.1:1"}
    )
    status = await server_of(profile, places).probe()
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
