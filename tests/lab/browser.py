"""A real headless Chromium for tests, driven over its debugging port: go somewhere, run script, type, take pictures."""

from __future__ import annotations

import asyncio
import base64
import itertools
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync --hide-scrollbars"
    " --disable-background-networking --disable-component-update --remote-debugging-port=0 --window-size=1280,800"
)


class Page:
    """One tab. Every call waits for the browser's answer; RuntimeError with what it said when it refuses."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.console: list[str] = []  # what the page's scripts logged, and what was refused to them

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        while True:
            told = await asyncio.wait_for(self._socket.receive_json(), 60)
            if told.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
                self.console.append(str(told["params"]))
            if told.get("id") == number:
                if "error" in told:
                    raise RuntimeError(f"{method}: {told['error']}")
                return dict(told["result"])

    async def go(self, address: str) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=address)

    async def run(self, script: str) -> Any:
        """The value of `script`; a promise is waited for."""
        told = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in told:
            raise RuntimeError(str(told["exceptionDetails"]))
        return told["result"].get("value")

    async def key(self, key: str, code: int) -> None:
        """A key that is no letter, by its name and its Windows key code."""
        for kind in ("rawKeyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    async def type(self, text: str) -> None:
        for letter in text:
            for kind in ("keyDown", "keyUp"):
                more = {"text": letter} if kind == "keyDown" else {}
                await self.call("Input.dispatchKeyEvent", type=kind, key=letter, **more)

    async def picture(self, path: Path) -> None:
        told = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(told["data"]))


@asynccontextmanager
async def browser() -> AsyncIterator[Page]:
    """A browser with one empty tab, and an empty profile that goes with it."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [CHROMIUM, *FLAGS.split(), f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            told = Path(profile) / "DevToolsActivePort"
            for _ in range(600):
                if told.exists() and told.read_text().count("\n"):
                    break
                await asyncio.sleep(0.05)
            port = told.read_text().split("\n")[0]
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                    tab = next(one for one in await answer.json(content_type=None) if one["type"] == "page")
                address = tab["webSocketDebuggerUrl"]
                async with session.ws_connect(address, max_msg_size=64 * 1024**2) as socket:
                    yield Page(socket)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
