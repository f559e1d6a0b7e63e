"""What this terminal can draw, decided before Textual starts and without surprises.

Nothing here asks the terminal anything unless the setting is `auto`, a person is there, and no multiplexer sits in
between: late replies would land in the composer, and tmux answers for itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import sys
import time
from collections.abc import Mapping
from typing import Literal

Drawing = Literal["kitty", "sixel", "halfcell", "off"]

#: How long a terminal may take to answer the probe (seconds). One that does not answer gets half cells.
PROBE_TIMEOUT = 0.15
#: One whose name says that it draws pixels will answer, also over a slow line.
SURE_TIMEOUT = 1.5
SURE = ("xterm-kitty", "xterm-ghostty", "foot", "mlterm", "contour")
_told_cell: tuple[int, int] | None = None


def choose(setting: str, environment: Mapping[str, str], *, tty: bool) -> Drawing | Literal["ask"]:
    """Return how pictures are drawn, as far as setting and environment decide; "ask" when only a probe can tell.

    A multiplexer or a missing terminal always means half cells, also for `kitty` and `sixel`: their pictures would
    not survive a repaint of another pane.
    """
    if setting == "off":
        return "off"
    multiplexed = bool(environment.get("TMUX") or environment.get("STY")) or environment.get("TERM", "").startswith(
        ("tmux", "screen")
    )
    if multiplexed or not tty or setting == "halfcell":
        return "halfcell"
    if setting == "kitty":
        return "kitty"
    if setting == "sixel":
        return "sixel"
    if environment.get("TERM", "dumb") in ("dumb", "linux") or environment.get("TERM_PROGRAM") == "Apple_Terminal":
        return "halfcell"
    return "ask"


def drawing_for(setting: str, environment: Mapping[str, str] = os.environ) -> Drawing:
    """Return the way to draw here; asks the terminal only where `choose` cannot tell."""
    tty = sys.stdin.isatty() and sys.stdout.isatty()
    chosen = choose(setting, environment, tty=tty)
    if chosen != "ask":
        return chosen
    return probe(SURE_TIMEOUT if environment.get("TERM", "").startswith(SURE) else PROBE_TIMEOUT)


def gone(descriptor: int) -> bool:
    """Return whether the terminal behind a descriptor has been closed; False for what never was one.

    The kernel tells only the session's leader. Where that is `make`, it waits for the console before it ends itself.
    """
    import termios

    try:
        termios.tcgetattr(descriptor)
    except termios.error as error:
        return error.args[0] in (errno.EIO, errno.ENXIO)
    except OSError:
        return False
    return False


def probe(timeout: float = PROBE_TIMEOUT) -> Drawing:
    """Ask in one go for kitty's pictures, the terminal's name, its cells' pixels and its attributes.

    Every real terminal answers the last.
    """
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    try:
        before = termios.tcgetattr(descriptor)
    except termios.error:
        return "halfcell"
    reply = b""
    try:
        tty.setcbreak(descriptor, termios.TCSANOW)
        os.write(sys.stdout.fileno(), b"\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\\x1b[>q\x1b[16t\x1b[c")
        end = time.monotonic() + timeout
        while (left := end - time.monotonic()) > 0 and not _ATTRIBUTES.search(reply):
            if select.select([descriptor], [], [], left)[0]:
                reply += os.read(descriptor, 4096)
    finally:
        # What has come is no typing. What comes later still is taken out by PasteFilter.
        with contextlib.suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)
    return understood(reply)


_NAME = re.compile(rb"\x1bP>\|([a-zA-Z]+)[ (]?(\d+)?(?:\.(\d+))?")
_CELL = re.compile(rb"\x1b\[6;(\d+);(\d+)t")
_ATTRIBUTES = re.compile(rb"\x1b\[\?([\d;]*)c")


def understood(reply: bytes) -> Drawing:
    """Return what a terminal draws by its answers to the probe; keeps its cells' size for `cell_pixels`."""
    global _told_cell
    if (cell := _CELL.search(reply)) and int(cell[1]) and int(cell[2]):
        _told_cell = int(cell[2]), int(cell[1])
    if b"_Gi=31;OK" in reply and (named := _NAME.search(reply)):
        # Taking kitty's pictures is not enough: the text that stands for their cells came later, and not everywhere.
        name, version = named[1].lower(), (int(named[2] or 0), int(named[3] or 0))
        if name == b"ghostty" or (name == b"kitty" and version >= (0, 28)):
            return "kitty"
    attributes = _ATTRIBUTES.search(reply)
    return "sixel" if attributes and b"4" in attributes[1].split(b";")[1:] else "halfcell"


def cell_pixels() -> tuple[int, int]:
    """Pixels of one cell (width, height) by the kernel's idea of the terminal, or what the probe was told.

    10×20 where nobody knows. Asks nobody.
    """
    import fcntl
    import struct
    import termios

    try:
        packed = fcntl.ioctl(sys.__stdout__ or 1, termios.TIOCGWINSZ, b"\0" * 8)
    except (OSError, ValueError):
        return _told_cell or (10, 20)
    rows, columns, width, height = struct.unpack("HHHH", packed)
    known = rows and columns and width >= columns and height >= rows
    return (width // columns, height // rows) if known else _told_cell or (10, 20)


def under_ssh(environment: Mapping[str, str] = os.environ) -> bool:
    return bool(environment.get("SSH_CONNECTION") or environment.get("SSH_TTY"))


def scp_line(path: str, inbox: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the line to run on the laptop: copy `path` into this machine's inbox. Shell-quoted for both sides."""
    import getpass
    import shlex
    import socket

    connection = environment.get("SSH_CONNECTION", "").split()
    host = connection[2] if len(connection) == 4 else socket.gethostname()
    port = connection[3] if len(connection) == 4 else "22"
    host = f"[{host}]" if ":" in host else host
    option = f"-P {port} " if port != "22" else ""
    target = f"{getpass.getuser()}@{host}:{shlex.quote(inbox)}/"
    return f"scp {option}{shlex.quote(path)} {shlex.quote(target)}"


#: Mouse, focus and resize reports, bracketed paste, line wrap, the keyboard's mode, the alternate screen and
#: a hidden cursor: all that Textual switches, back at rest.
AT_REST = (
    b"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l\x1b[?1004l\x1b[?2004l\x1b[?2048l"
    b"\x1b[?7h\x1b[<u\x1b[?1049l\x1b[?25h"
)


def heal_terminal(killed: bool) -> None:
    """Give a terminal that a killed console left behind its ordinary modes back, before Textual remembers them.

    `killed`: a console is known to have been killed on it (TerminalMark). Line editing is looked at in any case:
    without this the next console would restore the broken modes at its own end. Does nothing on a healthy terminal.
    """
    import termios

    try:
        descriptor = sys.stdin.fileno()
        modes = termios.tcgetattr(descriptor)
    except (termios.error, ValueError, OSError):
        return
    wanted = termios.ICANON | termios.ECHO | termios.ISIG | termios.IEXTEN
    if not (modes[3] & wanted == wanted and modes[1] & termios.OPOST):
        killed = True
        modes[0] |= termios.ICRNL | termios.IXON
        modes[1] |= termios.OPOST | termios.ONLCR
        modes[3] |= wanted
        with contextlib.suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSADRAIN, modes)
    if killed:
        with contextlib.suppress(OSError):
            os.write(sys.stdout.fileno(), AT_REST)
