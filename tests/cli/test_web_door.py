"""Idle connections of strangers neither lock the owner of `web` out nor fill his terminal or his disk."""

from __future__ import annotations

import asyncio
import contextlib
import re
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("textual_serve")

import waiting  # noqa: E402 — after the skip
from aiohttp import web  # noqa: E402

from vlmconsole.cli import web_door  # noqa: E402
from vlmconsole.cli.web_server import ConsoleServer  # noqa: E402
from vlmconsole.runs.places import Places  # noqa: E402


@pytest.fixture
async def serving(tmp_path: Path) -> AsyncIterator[ConsoleServer]:
    server = ConsoleServer(Places(tmp_path / "lab").ensure(), socket.create_server(("127.0.0.1", 0), backlog=256))
    runner = web.AppRunner(server.make())
    task = asyncio.create_task(server.door.serve(runner, server._listening))
    await waiting.until(lambda: runner.server is not None)
    yield server
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await runner.cleanup()


async def strangers(server: ConsoleServer, number: int, data: bytes = b"") -> list[asyncio.StreamWriter]:
    writers = []
    for _ in range(number):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port_here)
        writer.write(data)
        writers.append(writer)
    return writers


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\nHost: ", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_the_owner_comes_in_beside_any_number_of_strangers(serving: ConsoleServer, data: bytes) -> None:
    writers = await strangers(serving, 3 * web_door.STRANGERS, data)
    await waiting.until(lambda: len(serving.door.strangers) <= web_door.STRANGERS)
    async with (
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session,
        session.get(serving.entry) as answer,
    ):
        assert answer.status == 200
        writers += await strangers(serving, 2 * web_door.STRANGERS, data)  # the owner's own connection stays
        async with session.get(answer.url) as again:
            assert again.status == 200
    for writer in writers:
        writer.close()


async def test_a_stranger_has_little_time_and_the_owner_all(
    serving: ConsoleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_door, "PATIENCE", 0.2)
    (writer,) = await strangers(serving, 1, b"GET / HTTP/1.1\r\nX-Slow: ")
    async with (
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session,
        session.get(serving.entry) as answer,
    ):
        base = str(answer.url)
        await waiting.until(lambda: not serving.door.strangers)
        async with session.get(base) as again:
            assert again.status == 200
    writer.close()


async def test_the_machines_trouble_is_told_once(serving: ConsoleServer) -> None:
    lines: list[str] = []
    serving.door._say = lines.append
    loop = asyncio.get_running_loop()
    for _ in range(1000):
        loop.call_exception_handler({"message": "socket.accept() out of system resource"})
    assert len(lines) == 1


@pytest.mark.slow
def test_under_few_descriptors_the_terminal_stays_readable(tmp_path: Path) -> None:
    """Hundreds of idle connections against a process of 64 descriptors: the owner comes in, few lines are printed."""
    words = [sys.executable, "-m", "vlmconsole", "--home", str(tmp_path / "lab"), "web", "--port", "0"]

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    with (tmp_path / "out").open("wb") as out:
        server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=out, text=True, preexec_fn=few)
    idle: list[socket.socket] = []
    try:
        assert server.stdout is not None
        address = re.search(r"http://127.0.0.1:(\d+)\S+", server.stdout.readline())
        assert address is not None
        for _ in range(300):
            with contextlib.suppress(OSError):  # one that is not even taken is no attack
                idle.append(socket.create_connection(("127.0.0.1", int(address[1])), timeout=1))
        for client in idle:
            client.close()
        asyncio.run(_enters(address[0]))
    finally:
        server.terminate()
        server.wait(30)
    assert len((tmp_path / "out").read_text().splitlines()) < 40
    logs = list((tmp_path / "lab" / "state").glob("web.log*"))
    assert sum(log.stat().st_size for log in logs) < 3 * 1024 * 1024


async def _enters(address: str) -> None:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        for attempt in range(40):
            try:
                async with session.get(address) as answer:
                    assert answer.status == 200
                    return
            except aiohttp.ClientError:
                if attempt == 39:
                    raise
                await asyncio.sleep(0.5)
