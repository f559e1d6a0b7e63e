"""Draw every screen of the console, its states and dialogs, as SVG: to be looked at before and after a change.

    python tests/tools/screens.py OUT [--size 80x24 --size 120x40] [--only WORD] [--home FOLDER]

The real console is driven by keys, as a person would, over the lab home that version 0.1.0 wrote (`tests/data/homes`)
and over an empty one. No server and no network: the profile that is asked is one at which nothing answers. Time stands
still at NOW, and a scene's home always lies in the same place under FOLDER, so that only what was changed changes; the
host's own load on the gauges screen is the exception. What is imported is the vlmconsole of the Python that runs this,
so that `TREE/.venv/bin/python tests/tools/screens.py OUT` draws any tree.

OUT/SIZE/SCENE-SHOT.svg is written, and OUT/SIZE/SCENE-SHOT.txt with the same as plain text. Exits with 1 when a scene
broke, after all others are drawn.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

from PIL import Image

NOW = 1_796_110_000.0
"""2026-12-01 07:26 UTC, three hours after the last run of the old home ended."""
ARCHIVE = Path(__file__).resolve().parents[1] / "data" / "homes" / "0.1.0.tar.xz"
CONFIG = 'server = "nobody"\n'
NOBODY = (
    'engine = "openai"\ntitle = "A server that does not answer"\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "none"\n'
)
STILL, PATIENCE = 0.4, 12.0
"""Seconds without a change until a screen is drawn, and the longest wait for that."""
TOASTS = 600.0
"""Seconds that a toast stays, so that it is drawn however slow the machine is; the next step takes it away."""

#: Acts whose key changed → their keys, the newest first: the first that the screen binds is pressed. A step that is not
#: here is the name of a key; one that begins with "=" is typed, letter by letter.
KEYS: dict[str, tuple[str, ...]] = {
    "edit": ("E", "c"),
    "cancel": ("x", "c"),
    "compare": ("b", "c"),
    "time_range": ("t", "z"),
}


@dataclass(frozen=True)
class Scene:
    """One console from its start. `shots`: (name, steps before it); a shot without a name is only stepped through."""

    name: str
    home: str
    shots: tuple[tuple[str, str], ...]


#: Steps are parted by spaces; in what is typed, "_" stands for a space.
SCENES: tuple[Scene, ...] = (
    Scene(
        "chat",
        "old",
        (
            ("start", ""),
            ("reading", "escape"),
            ("chosen", "up"),
            ("pane-right", "]"),
            ("pane-right-2", "]"),
            ("details", "] enter"),
            ("help", "escape ?"),
            ("help-end", "end"),
            ("settings", "escape s"),
            ("servers", "escape S"),
            ("adapters", "escape a"),
            ("another", "escape b"),
            ("pair", "escape v"),
            ("edit", "escape up edit"),
            ("rename", "escape escape R"),
            ("delete", "escape d"),
            ("filter", "escape / =red"),
            ("filter-none", "=zzz"),
        ),
    ),
    Scene(
        "chat-write",
        "old",
        (
            ("attach", "ctrl+o"),
            ("attach-inbox", "tab tab"),
            ("attach-filter", "tab =square"),
            ("attached", "enter"),
            ("two", "ctrl+o =circle enter"),
            ("unknown-command", "ctrl+g =/nothing enter"),
            ("bad-path", "ctrl+g =/image_/nowhere.png enter"),
            ("sent", "ctrl+g =What_is_it? enter"),
        ),
    ),
    Scene(
        "palette",
        "old",
        (
            ("all", "escape ctrl+p"),
            ("image", "=image"),
            ("export", "escape ctrl+p =export"),
            ("nothing", "=zzz"),
        ),
    ),
    Scene("chat-image", "old", (("large", "escape up up up up up up up up z"), ("back", "escape"))),
    Scene("chat-export", "old", (("done", "escape e"), ("light", "T"))),
    Scene("chat-delete", "old", (("deleted", "escape d y"), ("undone", "u"))),
    Scene(
        "gauges",
        "old",
        (
            ("start", "escape f2"),
            ("pane-right", "]"),
            ("next", "tab tab"),
            ("pinned", "space"),
            ("conditions", "enter"),
            ("help", "escape ?"),
            ("log-axis", "escape l"),
            ("longer", "time_range"),
            ("paused", "p"),
            ("replay", "o"),
        ),
    ),
    Scene(
        "jobs",
        "old",
        (
            ("list", "escape f3"),
            ("next", "down"),
            ("pane-right", "]"),
            ("pane-right-2", "]"),
            ("pane-right-3", "]"),
            ("help", "escape ?"),
            ("filter", "escape / =sft"),
            ("details", "enter down down enter"),
            ("curve", "escape p"),
            ("large", "escape z"),
        ),
    ),
    Scene(
        "jobs-evaluation",
        "old",
        (
            ("chosen", "escape f3 / =eval enter"),
            ("answers", "]"),
            ("answer", "enter"),
            ("log", "escape ]"),
            ("log-search", "/ =error enter"),
        ),
    ),
    Scene("jobs-ended", "old", (("cancel", "escape f3 cancel"), ("drain", "d"))),
    Scene(
        "jobs-new",
        "old",
        (
            ("presets", "escape f3 n"),
            ("presets-filter", "=tiny"),
            ("none", "=zzz"),
            ("form", "escape n =sft-expand-tiny enter"),
            ("form-end", "tab tab tab tab tab tab tab tab"),
            ("plan", "enter"),
        ),
    ),
    Scene(
        "jobs-evaluate-new",
        "old",
        (
            ("form", "escape f3 n =eval-sft-tiny enter"),
            ("refused", "tab tab =nothing enter"),
        ),
    ),
    Scene("jobs-smoke-new", "old", (("form", "escape f3 n =smoke enter"), ("plan", "enter"))),
    Scene(
        "gates",
        "old",
        (
            ("list", "escape f4"),
            ("next", "down"),
            ("plan", "down"),
            ("details", "up up enter"),
            ("pane-right", "escape ]"),
            ("gate-next", "down"),
            ("evidence", "enter"),
            ("pane-right-2", "escape ]"),
            ("sample-next", "down down"),
            ("sample", "enter"),
            ("image-large", "escape z"),
            ("pane-right-3", "escape ]"),
            ("help", "escape ?"),
            ("filter", "escape / =zzz"),
        ),
    ),
    Scene("gates-check", "old", (("checked", "escape f4 c"),)),
    Scene(
        "runs",
        "old",
        (
            ("list", "escape f5"),
            ("next", "down"),
            ("sweep", "down down down"),
            ("figures", "enter"),
            ("figures-next", "."),
            ("figure-sheet", "down down enter"),
            ("large", "escape z"),
            ("help", "escape ?"),
            ("export", "escape e"),
            ("verify", "escape v"),
            ("filter", "escape / =sft"),
            ("filtered", "enter"),
            ("training", "down"),
            ("training-figures", "enter G"),
        ),
    ),
    Scene(
        "runs-compare",
        "old",
        (
            ("marked", "escape f5 / =output enter space"),
            ("two-marked", "space"),
            ("key-of-before", "c"),
            ("invalid", "escape compare"),
            ("unmarked", "escape u"),
            ("sweeps", "g space down space compare"),
            ("sweeps-end", "G"),
            ("sweeps-cell", "g enter"),
            ("trainings-marked", "escape escape u escape escape / =sft-expand enter g space space"),
            ("trainings", "compare"),
            ("trainings-side-by-side", "o"),
        ),
    ),
    Scene(
        "runs-unlike",
        "old",
        (
            ("marked", "escape f5 / =sft enter space space"),
            ("third", "space"),
            ("compare", "compare"),
        ),
    ),
    Scene(
        "servers",
        "old",
        (
            ("list", "escape f6"),
            ("next", "down"),
            ("sheet", "down"),
            ("details", "enter"),
            ("pane-right", "escape ]"),
            ("calculators", "c"),
            ("calculators-next", "tab tab"),
            ("log", "escape g l"),
            ("help", "escape ?"),
            ("use", "escape u"),
        ),
    ),
    Scene(
        "servers-demo",
        "old",
        (("chosen", "escape f6 up up up up up up up up down"), ("sheet", "]"), ("log", "l")),
    ),
    Scene("empty-chat", "empty", (("welcome", ""), ("reading", "escape"), ("light", "T"), ("attach", "ctrl+o"))),
    Scene("empty-gauges", "empty", (("start", "escape f2"),)),
    Scene("empty-jobs", "empty", (("list", "escape f3"), ("pane-right", "]"), ("presets", "n"))),
    Scene("empty-gates", "empty", (("list", "escape f4"), ("pane-right", "]"), ("check", "c"))),
    Scene("empty-runs", "empty", (("list", "escape f5"), ("pane-right", "]"), ("compare", "compare"))),
    Scene("empty-servers", "empty", (("list", "escape f6"), ("details", "enter"), ("calculators", "escape c"))),
)


def make_home(folder: Path, kind: str) -> Path:
    """A new home at `folder`/lab, in the place of one that lies there, and two images in `folder`/work."""
    home = folder / "lab"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    (folder / "work").mkdir()
    for name, colour in (("circle.png", "red"), ("square.png", "blue")):
        Image.new("RGB", (448, 336), colour).save(folder / "work" / name)
    if kind == "old":
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(folder, filter="data")
        (folder / "lab-0.1.0").rename(home)
    (home / "servers").mkdir(parents=True, exist_ok=True)
    (home / "servers" / "nobody.toml").write_text(NOBODY)
    (home / "config.toml").write_text(CONFIG)
    home.chmod(0o700)
    return home


class Console:
    """A console that is driven by keys and drawn when it has come to rest."""

    def __init__(self, pilot: Any) -> None:
        self.pilot = pilot

    @property
    def bound(self) -> set[str]:
        return set(self.pilot.app.screen.active_bindings)

    async def step(self, step: str) -> None:
        """One entry of the table: a key by name, keys by what they do, or text. Takes earlier toasts away."""
        self.pilot.app.clear_notifications()
        if step.startswith("="):
            for letter in step[1:].replace("_", " "):
                await self.pilot.press("space" if letter == " " else letter)
        else:
            keys = KEYS.get(step, (step,))
            key = next((key for key in keys if key in self.bound), keys[-1])
            await self.pilot.press(key)
        await self.rest()

    async def rest(self) -> str:
        """The picture once nothing changes and nothing works any more; the last one where that never comes.

        Behind a dialog a worker waits for the person, so there only the picture counts.
        """
        begun = since = time.perf_counter()
        picture = ""
        while True:
            await self.pilot.pause()
            drawn = self.pilot.app.export_screenshot()
            now = time.perf_counter()
            if drawn != picture:
                picture, since = drawn, now
            dialog = len(self.pilot.app.screen_stack) > 1
            busy = not dialog and any(not worker.is_finished for worker in self.pilot.app.workers)
            if (now - since >= STILL and not busy) or now - begun >= PATIENCE:
                return picture
            await asyncio.sleep(0.1)


def plain(svg: str) -> str:
    """The text of a drawn screen, a line each row."""
    rows: dict[float, list[tuple[float, str]]] = {}
    for attributes, text in re.findall(r"<text ([^>]*)>([^<]*)</text>", svg):
        found = dict(re.findall(r'(\w+)="([^"]*)"', attributes))
        if "clip" not in attributes:
            continue
        rows.setdefault(float(found["y"]), []).append((float(found["x"]), unescape(text).replace("\xa0", " ")))
    lines = []
    for _, parts in sorted(rows.items()):
        line = ""
        for x, text in sorted(parts):
            line = line.ljust(round(x / 12.2)) + text.rstrip("\n")
        lines.append(line.rstrip())
    return "\n".join(lines) + "\n"


async def play(scene: Scene, folder: Path, size: tuple[int, int], out: Path) -> None:
    """Draw the shots of one scene."""
    from vlmconsole.app import ConsoleApp
    from vlmconsole.lab import Lab

    home = make_home(folder, scene.home)
    os.chdir(folder / "work")  # what is offered to attach is of the folder that the console runs in
    app = ConsoleApp(Lab.open(home), clock=lambda: NOW)
    app.NOTIFICATION_TIMEOUT = TOASTS
    async with app.run_test(size=size, notifications=True) as pilot:
        console = Console(pilot)
        await console.rest()
        for name, steps in scene.shots:
            for step in steps.split():
                await console.step(step)
            if name:
                svg = await console.rest()
                (out / f"{scene.name}-{name}.svg").write_text(svg, encoding="utf-8")
                (out / f"{scene.name}-{name}.txt").write_text(plain(svg), encoding="utf-8")


def stand_still() -> None:
    """Time that does not pass and has no zone, before anything of the console is imported."""
    os.environ.update(TZ="UTC", COLORTERM="truecolor", TERM="xterm-256color", LANG="C.UTF-8")
    for name in ("NO_COLOR", "SSH_CONNECTION", "SSH_CLIENT", "TMUX", "VLMCONSOLE_HOME", "BOX_KEY"):
        os.environ.pop(name, None)
    time.tzset()
    time.time = lambda: NOW


def draw(out: Path, sizes: Sequence[tuple[int, int]], only: str, folder: Path) -> int:
    stand_still()
    os.environ["VLMCONSOLE_DEVICE_LOCKS"] = str(folder / "locks")
    status = 0
    for columns, rows in sizes:
        place = out / f"{columns}x{rows}"
        place.mkdir(parents=True, exist_ok=True)
        for scene in SCENES:
            if only in scene.name:
                try:
                    asyncio.run(play(scene, folder / place.name / scene.name, (columns, rows), place))
                except Exception as error:  # one scene that breaks must not hide the others
                    print(f"{columns}x{rows} {scene.name}: {type(error).__name__}: {error}", file=sys.stderr)
                    status = 1
                print(f"{columns}x{rows} {scene.name}: {len(scene.shots)} shots", flush=True)
    return status


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path)
    options.add_argument("--size", action="append", default=[], help="COLUMNSxROWS; may be given more than once")
    options.add_argument("--only", default="", help="scenes with this word in their name")
    options.add_argument("--home", type=Path, default=Path(tempfile.gettempdir()) / "vlmconsole-screens")
    wanted = options.parse_args()
    sizes = [tuple(int(part) for part in size.split("x")) for size in wanted.size or ("80x24", "120x40")]
    sys.exit(draw(wanted.out.resolve(), [(size[0], size[1]) for size in sizes], wanted.only, wanted.home.resolve()))


if __name__ == "__main__":
    main()
