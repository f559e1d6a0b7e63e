"""What this terminal can draw, decided before Textual starts and without surprises.

Nothing here asks the terminal anything unless the setting is `auto`, a person is there, and no multiplexer sits in
between: late replies would land in the composer, and tmux answers for itself.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Mapping
from typing import Literal

Drawing = Literal["kitty", "sixel", "halfcell", "off"]

#: How long a terminal may take to answer the probe (seconds). One that does not answer gets half cells.
PROBE_TIMEOUT = 0.15


def choose(setting: str, environment: Mapping[str, str], *, tty: bool) -> Drawing | Literal["ask"]:
    """How pictures are drawn, as far as setting and environment decide; "ask" when only a probe can tell.

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
    if environment.get("KITTY_WINDOW_ID") or environment.get("TERM") == "xterm-kitty":
        return "kitty"
    if environment.get("TERM", "dumb") in ("dumb", "linux") or environment.get("TERM_PROGRAM") == "Apple_Terminal":
        return "halfcell"
    return "ask"


def drawing_for(setting: str, environment: Mapping[str, str] = os.environ) -> Drawing:
    """The way to draw here; asks the terminal only where `choose` cannot tell."""
    tty = sys.stdin.isatty() and sys.stdout.isatty()
    chosen = choose(setting, environment, tty=tty)
    return probe() if chosen == "ask" else chosen


def probe(timeout: float = PROBE_TIMEOUT) -> Drawing:
    """Ask for kitty graphics and for the device attributes in one go; every real terminal answers the second."""
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
        os.write(sys.stdout.fileno(), b"\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\\x1b[c")
        end = time.monotonic() + timeout
        while (left := end - time.monotonic()) > 0 and not _attributes(reply):
            if select.select([descriptor], [], [], left)[0]:
                reply += os.read(descriptor, 4096)
    finally:
        # What comes later than the timeout must not be read as typing.
        with contextlib.suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)
    if b"_Gi=31;OK" in reply:
        return "kitty"
    return "sixel" if b"4" in _attributes(reply).split(b";")[1:] else "halfcell"


def _attributes(reply: bytes) -> bytes:
    """The parameters of a `CSI ? … c` answer, empty while it has not come."""
    start = reply.find(b"\x1b[?")
    end = reply.find(b"c", start)
    return reply[start + 3 : end] if start >= 0 and end > 0 else b""


def under_ssh(environment: Mapping[str, str] = os.environ) -> bool:
    return bool(environment.get("SSH_CONNECTION") or environment.get("SSH_TTY"))


def scp_line(path: str, inbox: str, environment: Mapping[str, str] = os.environ) -> str:
    """The line to run on the laptop: copy `path` into this machine's inbox. Shell-quoted for both sides."""
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
