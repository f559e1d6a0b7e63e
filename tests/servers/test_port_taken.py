"""A port is taken over after a server or an ssh of ours died: neither key nor question goes there, on any way."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from loopback_sshd import LACKING, Sshd
from refusals import refused
from small_server import profile
from thief import thief
from waiting import until

from vlmconsole.client.chat import ChatClient
from vlmconsole.engines import access
from vlmconsole.engines.access import Access, Holder, PortTakenError
from vlmconsole.engines.http import EngineError, get_json, open_client
from vlmconsole.engines.profile import ServerProfile, make_profile
from vlmconsole.engines.readback import readback
from vlmconsole.gauges.fetch import Fetcher
from vlmconsole.gauges.figures import SourceError
from vlmconsole.measure.inputs import InputRecipe
from vlmconsole.measure.load import LoadCell, Target, run_cell
from vlmconsole.models.messages import Message
from vlmconsole.remote.ssh import SshHost
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.servers import processes
from vlmconsole.servers.tunnel import Tunnel
from vlmconsole.servers.where import server_of
from vlmconsole.system import listening
from vlmconsole.system.listening import listener
from vlmconsole.system.processes import started

HELLO = [Message("user", "a question of nobody else's")]
TAKEN = "another program"


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(home=tmp_path / "lab").ensure()


@pytest.fixture
async def killed(places: Places) -> AsyncIterator[ServerProfile]:
    """The profile of a server that answered, as every open console has it, and which was killed since."""
    ready = await server_of(profile(), places).ensure()
    running = processes.recorded(places, "box")
    assert running is not None
    assert access.check(running) is not None, "the port is ours while it lives"
    for pid in processes.members(running):
        os.kill(pid, signal.SIGKILL)
    await until(lambda: not processes.members(running))
    yield ready.profile
    await server_of(profile(), places).stop()


def port_of(there: ServerProfile) -> int:
    return int(there.base_url.rpartition(":")[2])


async def test_chat_control_requests_and_gauges_send_nothing_to_a_stranger(
    killed: ServerProfile, places: Places, tmp_path: Path
) -> None:
    with thief(port_of(killed), tmp_path) as loot:
        async with ChatClient(killed) as client:
            answer = await client.ask(HELLO, max_tokens=4)
        assert answer.result.ended == "error" and TAKEN in (answer.result.error or "")
        with refused("port-taken", TAKEN, error=EngineError):
            await readback(killed)
        with refused("port-taken", TAKEN, error=SourceError):
            await asyncio.to_thread(Fetcher.of(killed).get, "/v1/metrics")
        with refused("port-taken", TAKEN, error=PortTakenError):
            Target.to(killed).listener()
        # By its record the server has ended: its profile is at no address any more.
        assert (await server_of(profile(), places).probe()).state == "ended" and server_of(
            profile(), places
        ).located().base_url == ""
        assert loot.bytes == b""
        # What a server that is only given by its address gets: the test's thief does work.
        stranger = make_profile({"name": "given", "engine": "openai", "base_url": killed.base_url})
        assert (await readback(stranger)).model == "served" and b"GET /v1/models" in loot.bytes


async def test_a_connection_that_was_open_before_is_not_opened_again_to_a_stranger(
    places: Places, tmp_path: Path
) -> None:
    ready = await server_of(profile(), places).ensure()
    running = processes.recorded(places, "box")
    assert running is not None
    try:
        async with open_client(ready.profile) as client:
            assert await get_json(client, ready.profile, "/v1/models")
            for pid in processes.members(running):
                os.kill(pid, signal.SIGKILL)
            await until(lambda: not processes.members(running))
            with pytest.raises(EngineError, match=r"nothing answers|closed the connection"):
                await get_json(client, ready.profile, "/v1/models")
            with thief(running.port, tmp_path) as loot:
                with refused("port-taken", TAKEN, error=EngineError):
                    await get_json(client, ready.profile, "/v1/models")
                assert loot.bytes == b""
    finally:
        await server_of(profile(), places).stop()


async def test_a_stranger_beside_a_living_process_of_ours_is_seen(tmp_path: Path) -> None:
    """The server lives and never bound its port (or gave it up): alive is not enough."""
    port = processes.free_port()
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as ours:
        holder = Holder("server box", port, ours.pid, started(ours.pid) or "")
        at = profile().at(f"http://127.0.0.1:{port}", access=Access(holder))
        assert access.check(holder) is None, "nobody listens: the connection fails by itself"
        with thief(port, tmp_path) as loot:
            with refused("port-taken", "server box", str(port), error=EngineError):
                await readback(at)
            assert loot.bytes == b""
        ours.kill()


async def test_the_load_client_opens_no_connection_to_a_stranger(
    killed: ServerProfile, places: Places, tmp_path: Path
) -> None:
    """The client's own process looks at each connection, since a server may die in mid-cell."""
    recipe = InputRecipe("taken/1", {"model": "served", "max_tokens": 4, "stream": True}, None)
    target = Target.to(killed)  # made while nobody listens
    run = RunFolder.create(places.runs, kind="bench", preset="t", spec={}, title="t", home=places.home)
    with thief(port_of(killed), tmp_path) as loot:
        there = listener(port_of(killed))
        assert there is not None
        plain = Target.of(killed.url("/v1/chat/completions"))

        class Before(Target):
            """As it was a moment before: nobody listened."""

            def listener(self) -> int | None:
                return 0

        cell = LoadCell("taken", Before(plain.host, plain.port, plain.path), list(recipe.bodies(range(4))), 2)
        summary = await asyncio.to_thread(run_cell, cell, run)
        assert summary.n == 0 and loot.bytes == b""
        with pytest.raises(PortTakenError):
            await asyncio.to_thread(run_cell, LoadCell("taken", target, list(recipe.bodies(range(4))), 2), run)
        assert loot.bytes == b""


@pytest.mark.skipif(bool(LACKING), reason=LACKING)
async def test_the_port_of_a_dead_tunnel_gets_nothing(tmp_path: Path) -> None:
    (tmp_path / "sshd").mkdir()
    far = Sshd(tmp_path / "sshd")
    far.start()
    try:
        with Tunnel(SshHost.parse(far.alias, config=far.config), far.port, tmp_path) as tunnel:
            await asyncio.to_thread(tunnel.wait)
            assert access.check(tunnel) is not None and tunnel.pid is not None
            at = profile().at(tunnel.base_url, access=Access(tunnel))
            far.stop()  # its ssh ends, and cannot be opened again
            with thief(tunnel.local_port, tmp_path) as loot:
                async with ChatClient(at) as client:
                    answer = await client.ask(HELLO, max_tokens=4)
                assert answer.result.ended == "error" and "nothing was sent" in (answer.result.error or "")
                await until(lambda: tunnel.state == "down")
                with pytest.raises(SourceError, match="tunnel"):
                    await asyncio.to_thread(Fetcher.of(at).get, "/metrics")
                await until(lambda: "another program" in tunnel.why)
                assert loot.bytes == b""
    finally:
        far.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells it")
@pytest.mark.parametrize(
    ("family", "address"), [("4", "127.0.0.1"), ("4", "0.0.0.0"), ("6", "::"), ("6", "::ffff:127.0.0.1")]
)
def test_who_listens_is_read_as_the_kernel_tells_it(family: str, address: str) -> None:
    kind = socket.AF_INET if family == "4" else socket.AF_INET6
    assert listener(processes.free_port()) is None
    with socket.socket(kind) as own:
        own.bind((address, 0))
        own.listen()
        port = own.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):  # other states of the same port do not count
            there = listener(port)
            assert there is not None and there.uid == os.getuid()
            assert there.inode == os.fstat(own.fileno()).st_ino
            # Both ways of asking see the same, for where one of them is shut.
            assert listening._asked(port, kind) == listening._read(port, kind) != {}


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells it")
def test_another_address_of_the_same_port_is_not_taken_for_it() -> None:
    with socket.socket(socket.AF_INET6) as only_six, socket.socket() as elsewhere:
        only_six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        only_six.bind(("::1", 0))
        only_six.listen()
        assert listener(only_six.getsockname()[1]) is None
        elsewhere.bind(("127.0.0.2", 0))
        elsewhere.listen()
        assert listener(elsewhere.getsockname()[1]) is None
