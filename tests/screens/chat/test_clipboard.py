"""The desktop's clipboard through real processes: small stand-ins for the desktops' tools, first on PATH."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from chat_server import chat_server, profile_file
from PIL import Image
from refusals import refused
from test_chat_screen import ask, console, until

from vlmconsole.screens.chat import clipboard
from vlmconsole.screens.chat.clipboard import clipboard_picture

TOOL = """#!{python}
import sys, time
words = " ".join(sys.argv[1:])
if words == {types!r}:
    print({offered!r})
elif words == {get!r}:
    sys.stdout.buffer.write(open({file!r}, "rb").read())
else:
    time.sleep({hangs})
    sys.exit("unknown: " + words)
"""


def tool(
    folder: Path, name: str, *, types: str, get: str, offered: str = "image/png", hangs: float = 0
) -> dict[str, str]:
    """An executable `name` that answers as the real one does, and the environment that finds it."""
    image, file = Image.new("RGB", (31, 17), (200, 30, 30)), folder / "held.png"
    image.save(file)
    made = folder / name
    made.write_text(
        TOOL.format(python=sys.executable, types=types, get=get, offered=offered, file=str(file), hangs=hangs)
    )
    made.chmod(0o755)
    return {"PATH": str(folder)}


WAYLAND = {"types": "--list-types", "get": "--no-newline --type image/png"}
XCLIP = {"types": "-selection clipboard -o -t TARGETS", "get": "-selection clipboard -o -t image/png"}


def size(data: bytes) -> tuple[int, int]:
    return Image.open(io.BytesIO(data)).size


def test_each_desktop_is_asked_in_its_own_way(tmp_path: Path) -> None:
    found = tool(tmp_path, "wl-paste", **WAYLAND, offered="text/plain\nimage/jpeg\nimage/png")
    assert size(clipboard_picture({**found, "WAYLAND_DISPLAY": "wayland-0", "DISPLAY": ":0"}, "linux")) == (31, 17)
    found = tool(tmp_path, "xclip", **XCLIP)
    assert size(clipboard_picture({**found, "DISPLAY": ":0"}, "linux")) == (31, 17)
    found = tool(tmp_path, "pngpaste", types="-", get="-")
    (tmp_path / "pngpaste").write_text((tmp_path / "pngpaste").read_text().replace("if words", "if not words", 1))
    assert size(clipboard_picture(found, "darwin")) == (31, 17)


def test_where_it_is_not_possible_it_is_said_why_and_what_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desktop = {"WAYLAND_DISPLAY": "wayland-0"}
    with refused("clipboard-far", "SSH", "scp"):
        clipboard_picture({**desktop, "SSH_CONNECTION": "10.0.0.2 5 10.0.0.9 22"}, "linux")
    with refused("desktop-missing"):
        clipboard_picture({"PATH": str(tmp_path)}, "linux")
    with refused("program-missing", "wl-paste", "wl-clipboard"):
        clipboard_picture({**desktop, "PATH": str(tmp_path)}, "linux")
    found = tool(tmp_path, "wl-paste", **WAYLAND, offered="text/plain\nUTF8_STRING")
    with refused("picture-missing", "text/plain"):
        clipboard_picture({**desktop, **found}, "linux")
    found = tool(tmp_path, "wl-paste", types="nothing of it", get="", hangs=30)
    monkeypatch.setattr(clipboard, "TIMEOUT", 0.5)
    with refused("clipboard-silent"):
        clipboard_picture({**desktop, **found}, "linux")


async def test_paste_attaches_the_clipboards_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tool(tmp_path, "wl-paste", **WAYLAND)
    monkeypatch.setenv("PATH", found["PATH"], prepend=":")
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    for name in ("SSH_CONNECTION", "SSH_TTY"):
        monkeypatch.delenv(name, raising=False)
    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await ask(pilot, screen, "/paste")
            await until(lambda: [one.size for one in screen.attachments.pictures] == [(31, 17)])
            await pilot.press("escape", "p")
            await until(lambda: len(screen.attachments.pictures) == 2)
            assert [one.name for one in screen.attachments.pictures] == ["clipboard.png"] * 2 and server.requests == []
