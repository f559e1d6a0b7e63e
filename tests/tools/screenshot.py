"""Make the README's picture: the real console on the real bundled server, asked about a bundled scene.

    python tests/tools/screenshot.py [--theme dark|light] [--size 120x40] [--out assets/screenshots/chat]

Starts the demo server in a temporary lab home, asks, waits for the answer, writes OUT.svg, and OUT.png where a
`chromium` is installed. Nothing in the picture is made up: it shows whatever the model answered.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import tempfile
from pathlib import Path

import vlmconsole.assets
from vlmconsole.app import ConsoleApp
from vlmconsole.counting.questions import COUNT_PROMPT
from vlmconsole.lab import Lab
from vlmconsole.queue.served import stop_served
from vlmconsole.screens.chat.screen import ChatScreen

QUESTIONS = (("scene-regular.png", COUNT_PROMPT),)


async def shot(size: tuple[int, int], theme: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "config.toml").write_text(f'theme = "{theme}"\nmax_tokens = 64\n')
        app = ConsoleApp(Lab.open(home))
        try:
            async with app.run_test(size=size) as pilot:
                await until(lambda: app.link is not None and app.link.view.state in ("ready", "failed"), 120)
                screen = app.screen
                assert isinstance(screen, ChatScreen) and app.link is not None
                if app.link.view.state == "failed":
                    raise SystemExit(app.link.view.note)
                await until(lambda: screen.furnished, 20)
                for picture, question in QUESTIONS:
                    await screen.composer.attach([Path(vlmconsole.assets.__file__).parent / "pictures" / picture])
                    screen.composer.question.insert(question)
                    await pilot.press("enter")
                    await until(lambda: bool(screen.asker.running), 20)
                    await until(lambda: not screen.asker.running, 120)
                await pilot.press("escape", "k")
                await app.workers.wait_for_complete()
                await pilot.pause(0.5)
                return app.export_screenshot()
        finally:
            if app.link is not None:
                await stop_served(app.link.profile, app.lab.places)


async def until(true: object, seconds: float) -> None:
    assert callable(true)
    for _ in range(int(seconds / 0.05)):
        if true():
            return
        await asyncio.sleep(0.05)
    raise SystemExit(f"nothing came of it within {seconds:.0f} s")


def to_png(svg: Path, png: Path) -> None:
    """Through headless Chromium, which has the fonts (Fira Code, Noto CJK)."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        print("no chromium here: only the SVG was written")
        return
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync --hide-scrollbars"
    more = "--disable-background-networking --disable-component-update --window-size=1482,1002"
    with tempfile.TemporaryDirectory() as profile:
        command = [
            browser,
            *flags.split(),
            *more.split(),
            f"--user-data-dir={profile}",
            f"--screenshot={png}",
            svg.as_uri(),
        ]
        subprocess.run(command, check=True, timeout=120, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--theme", default="dark", choices=("dark", "light"))
    options.add_argument("--size", default="120x40")
    options.add_argument("--out", type=Path, default=Path("assets/screenshots/chat"))
    wanted = options.parse_args()
    columns, rows = (int(part) for part in wanted.size.split("x"))
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    svg, png = (wanted.out.with_suffix(ending).absolute() for ending in (".svg", ".png"))
    svg.write_text(asyncio.run(shot((columns, rows), wanted.theme)), encoding="utf-8")
    to_png(svg, png)
    print(f"{svg}\n{png}")


if __name__ == "__main__":
    main()
