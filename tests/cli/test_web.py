"""The console in a browser: who may come in, what an upload may be, and once for real in Chromium."""

from __future__ import annotations

import asyncio
import base64
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from refusals import check_nouns, check_stderr

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("textual_serve")

from aiohttp import web  # noqa: E402 — after the skip
from browser import CHROMIUM, browser  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import vlmconsole.assets  # noqa: E402
from vlmconsole.cli import web_server  # noqa: E402
from vlmconsole.cli.web_server import ConsoleServer, safe_name  # noqa: E402
from vlmconsole.runs.places import Places  # noqa: E402

PICTURE = Path(vlmconsole.assets.__file__).parent / "pictures" / "scene-regular.png"


class Visitor:
    """A client of a running server: `get` and `post` with or without its cookie and headers."""

    def __init__(self, server: ConsoleServer, places: Places, session: aiohttp.ClientSession) -> None:
        self.server, self.places, self._session = server, places, session
        self.base = ""

    async def enter(self) -> None:
        """Open the printed address, as a browser would."""
        async with self._session.get(self.server.entry) as answer:
            assert answer.status == 200
            self.base = str(answer.url).rstrip("/")
            assert "key" not in str(answer.url), "the key does not stay in the address"

    async def get(self, path: str = "/", **headers: str) -> tuple[int, str]:
        async with self._session.get(f"{self.base or self.server.public_url}{path}", headers=headers) as answer:
            return answer.status, await answer.text()

    async def post(self, data: bytes, name: str = "a.png", **headers: str) -> tuple[int, dict[str, str]]:
        given = {"Origin": self.server.public_url, "X-Vlmconsole": "upload", **headers}
        async with self._session.post(f"{self.base}/upload", params={"name": name}, data=data, headers=given) as answer:
            kind = answer.content_type
            return answer.status, await answer.json() if kind == "application/json" else {"error": await answer.text()}


@pytest.fixture
async def visitor(tmp_path: Path) -> AsyncIterator[Visitor]:
    places = Places(tmp_path / "lab").ensure()
    listening = socket.create_server(("127.0.0.1", 0))
    server = ConsoleServer(places, listening)
    runner = web.AppRunner(server.make())
    await runner.setup()
    await web.SockSite(runner, listening).start()
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield Visitor(server, places, session)
    await runner.cleanup()


async def test_only_the_printed_address_lets_one_in(visitor: Visitor) -> None:
    status, text = await visitor.get()
    assert status == 403 and "terminal" in text
    assert (await visitor.get("/?key=wrong"))[0] == 403
    await visitor.enter()
    status, text = await visitor.get()
    assert status == 200 and "data-session-websocket-url" in text
    for path in ("/static/js/textual.js", "/own/upload.js", "/own/console.css"):
        assert (await visitor.get(path))[0] == 200, path
    for path in ("/own/../web.py", "/own/nothing", "/static/../server.py"):
        assert (await visitor.get(path))[0] in (403, 404), path


async def test_a_cookie_that_is_no_text_is_refused_and_not_fallen_over(visitor: Visitor) -> None:
    await visitor.enter()
    path = "/" + visitor.base.rpartition("/")[2] + "/"
    reader, writer = await asyncio.open_connection("127.0.0.1", visitor.server.port_here)
    host = f"127.0.0.1:{visitor.server.port_here}".encode()
    writer.write(b"GET " + path.encode() + b" HTTP/1.1\r\nHost: " + host + b"\r\nCookie: vlmconsole=\xff\xfe\r\n\r\n")
    assert (await asyncio.wait_for(reader.readline(), 10)).split()[1] == b"403"
    writer.close()


async def test_other_names_and_other_pages_are_refused(visitor: Visitor) -> None:
    await visitor.enter()
    assert (await visitor.get(Host=f"evil.example:{visitor.server.port_here}"))[0] == 403, "DNS rebinding"
    data = PICTURE.read_bytes()
    for headers in (
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"X-Vlmconsole": "no"},
    ):
        assert (await visitor.post(data, **headers))[0] == 403, headers
    assert (await visitor.get("/ws", Upgrade="websocket"))[0] == 403, "a socket without an Origin"
    assert list(visitor.places.inbox.iterdir()) == []


async def test_a_picture_comes_into_the_inbox_and_nothing_else_does(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await visitor.enter()
    data = PICTURE.read_bytes()
    status, told = await visitor.post(data, "../../etc/my scene.png")
    kept = visitor.places.inbox / "my scene.png"
    assert status == 200 and told["path"] == str(kept) and told["quoted"] == f"'{kept}'"
    assert kept.read_bytes() == data and kept.stat().st_mode & 0o777 == 0o600
    assert (await visitor.post(b"other" + data, "my scene.png"))[0] == 415
    assert (await visitor.post(data, "my scene.png"))[1]["name"] == "my scene-2.png", "nothing is overwritten"
    status, told = await visitor.post(b"#!/bin/sh\nrm -rf /", "run.png")
    assert status == 415 and "run.png" in told["error"]
    assert (await visitor.post(b"", "empty.png"))[0] == 415
    monkeypatch.setattr(web_server, "INBOX_LARGEST", 1000)
    status, told = await visitor.post(data, "full.png")
    assert status == 507 and "is full" in told["error"]
    assert sorted(path.name for path in visitor.places.inbox.iterdir()) == ["my scene-2.png", "my scene.png"]


@pytest.mark.slow
async def test_too_large_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visitor: Visitor) -> None:
    await visitor.enter()
    status, told = await visitor.post(bytes(web_server.LARGEST + 1))
    assert status == 413 and "64 MiB" in told["error"]


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_any_name_becomes_a_name_in_one_folder(text: str) -> None:
    name = safe_name(text)
    assert name and "/" not in name and "\\" not in name and not name.startswith((".", "-"))
    assert name.isprintable() and len(name.encode()) < 200 and Path("/inbox", name).parent == Path("/inbox")


@pytest.mark.slow
def test_only_loopback_is_served(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "example.org"):
        words = [sys.executable, "-m", "vlmconsole", "--home", str(tmp_path), "web", "--host", host, "--port", "0"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 2
        check_stderr(done.stderr, host, "loopback address")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
async def test_in_a_real_browser(tmp_path: Path) -> None:
    """The page comes up, takes keys, and a dropped picture becomes an attachment of the chat."""
    home = tmp_path / "lab"
    home.mkdir()
    (home / "config.toml").write_text('server = "none"\n')
    words = [sys.executable, "-m", "vlmconsole", "--home", str(home), "web", "--port", "0"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found is not None
        async with browser() as page:
            await page.go(found[0])
            await page.call("Emulation.setFocusEmulationEnabled", enabled=True)
            for _ in range(240):
                if await page.run("Boolean(document.body) && document.body.classList.contains('-first-byte')"):
                    break
                await asyncio.sleep(0.5)
            else:
                raise AssertionError(page.console)
            # The keyboard is live without a click: the terminal's own field has it.
            for _ in range(60):
                if await page.run("document.activeElement.className") == "xterm-helper-textarea":
                    break
                await asyncio.sleep(0.5)
            else:
                raise AssertionError(await page.run("document.activeElement.outerHTML.slice(0, 200)"))
            await asyncio.sleep(5)
            await page.picture(tmp_path / "before.png")
            await page.key("F3", 114)
            await asyncio.sleep(5)
            await page.picture(tmp_path / "jobs.png")
            assert (tmp_path / "before.png").read_bytes() != (tmp_path / "jobs.png").read_bytes()
            await page.key("F1", 112)
            await asyncio.sleep(2)
            data = base64.b64encode(PICTURE.read_bytes()).decode()
            file = f"new File([Uint8Array.from(atob('{data}'), c => c.charCodeAt(0))], 'scene.png')"
            check_nouns(await page.run(f"take([{file}]).then(() => said.textContent)"), "scene.png", "inbox")
            assert (home / "inbox" / "scene.png").read_bytes() == PICTURE.read_bytes()
            await asyncio.sleep(5)
            await page.picture(tmp_path / "chat.png")
            await page.key("F2", 113)
            await asyncio.sleep(8)
            await page.picture(tmp_path / "gauges.png")
            assert (tmp_path / "chat.png").read_bytes() != (tmp_path / "gauges.png").read_bytes()
            assert "key=" not in await page.run("location.href")
            assert not [line for line in page.console if "Content Security" in line], page.console
            assert await page.run("fetch('http://127.0.0.1:1/').then(() => 'went', () => 'refused')") == "refused"
    finally:
        server.terminate()
        server.wait(30)
