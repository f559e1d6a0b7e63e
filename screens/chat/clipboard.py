"""The picture in this desktop's clipboard, through the tool that the desktop has for it; never over SSH."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from vlmconsole.screens.keys import with_keys
from vlmconsole.screens.terminal.terminal import under_ssh
from vlmconsole.text.plain import one_line
from vlmconsole.vision.images import PictureError

INSTEAD = "Copy an image, or paste the path of a file."
TIMEOUT = 5.0  # seconds that a tool may take; one that waits for a frozen window would never end
#: In the order in which they are preferred: what loses nothing first.
TYPES = ("image/png", "image/webp", "image/bmp", "image/tiff", "image/jpeg", "image/gif", "image/heic")


@dataclass(frozen=True)
class Tool:
    """How a desktop is asked: `types` lists what there is, `get` followed by one of them writes it out."""

    program: str
    package: str
    types: tuple[str, ...]
    get: tuple[str, ...]


WAYLAND = Tool("wl-paste", "wl-clipboard", ("--list-types",), ("--no-newline", "--type"))
X11 = Tool(
    "xclip", "xclip", ("-selection", "clipboard", "-o", "-t", "TARGETS"), ("-selection", "clipboard", "-o", "-t")
)
MAC = Tool("pngpaste", "pngpaste", (), ("-",))


def clipboard_picture(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> bytes:
    """Return the bytes of the clipboard's picture, as the application put it there (a Mac's: as PNG).

    Raises PictureError (with a hint what to do instead) where there is no picture or no way to it.
    """
    if under_ssh(environment):
        raise PictureError(
            "over SSH this machine's clipboard is not yours.",
            "Save the image there and paste its path: the scp command to copy it is shown.",
            code="clipboard-far",
        )
    tool = _tool(environment, platform)
    if tool is None:
        raise PictureError(
            "no clipboard: this machine has no desktop.",
            with_keys("Attach a file with {chat.attach}, or paste a path."),
            code="desktop-missing",
        )
    program = shutil.which(tool.program, path=environment.get("PATH"))
    if program is None:
        raise PictureError(
            f"reading the clipboard needs {tool.program}, which is not installed.",
            f"Install {tool.package}, or paste the path of a file.",
            code="program-missing",
        )
    if not tool.types:
        return _ask(program, tool.get, "the clipboard holds no image")
    offered = _ask(program, tool.types, "the clipboard is empty").decode("utf-8", "replace").split()
    kind = next((kind for kind in TYPES if kind in offered), None)
    if kind is None:
        held = one_line(", ".join(word for word in offered if "/" in word)[:80]) or "nothing"
        raise PictureError(
            f"the clipboard holds no image, but {held}.",
            "Copy an image, or paste the path of a file.",
            code="picture-missing",
        )
    return _ask(program, (*tool.get, kind), "the clipboard returned no image")


def _tool(environment: Mapping[str, str], platform: str) -> Tool | None:
    if platform == "darwin":
        return MAC
    if environment.get("WAYLAND_DISPLAY"):
        return WAYLAND
    return X11 if environment.get("DISPLAY") else None


def _ask(program: str, words: tuple[str, ...], else_said: str) -> bytes:
    try:
        done = subprocess.run([program, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        raise PictureError(
            f"the clipboard did not answer within {TIMEOUT:.0f} s.", "Copy the image again.", code="clipboard-silent"
        ) from None
    except OSError as error:
        raise PictureError(f"{program} could not be started: {error}") from None
    if done.returncode or not done.stdout:
        stderr = one_line(done.stderr.decode("utf-8", "replace").strip(), 120)
        raise PictureError(
            f"{else_said}{f' ({stderr})' if stderr else ''}.", "Copy an image, or paste the path of a file."
        )
    return done.stdout
