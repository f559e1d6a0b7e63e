"""Cold start to the first painted frame, and what the console costs while nothing happens. Run by hand, quiet machine.

    python tests/tools/benchmarks/startup.py [--runs 15] [--idle 20]

The console and a bare Textual app (header, table, input, footer) start in turn in a pseudo-terminal of 120×40; the
clock runs from the fork to the first byte of the frame that shows the app's own text. Medians of one run are compared,
so that the machine's mood meets both. Idle cost: CPU seconds of the process over `--idle` seconds, after 5 s of rest.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import select
import signal
import statistics
import struct
import sys
import tempfile
import termios
import time
from fcntl import ioctl
from pathlib import Path

#: In the first frame of the console, and in no frame before it.
MARK = b"Ask about a"
BARE = """
from textual.app import App
from textual.widgets import DataTable, Footer, Header, Input
class Bare(App):
    def compose(self):
        yield Header()
        yield DataTable()
        yield Input(placeholder="bare-is-painted")
        yield Footer()
Bare().run()
"""


def started(argv: list[str], home: Path) -> tuple[int, int]:
    """Fork `argv` on a terminal of 120×40; gives (pid, terminal)."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's second start finds compiled modules
        os.environ.update(TERM="xterm-256color", COLORTERM="truecolor", TMUX="benchmark", VLMCONSOLE_HOME=str(home))
        os.execv(argv[0], argv)
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    return pid, terminal


def until_painted(terminal: int, mark: bytes, limit: float = 60.0) -> None:
    seen, end = b"", time.monotonic() + limit
    while mark not in seen:
        if time.monotonic() > end:
            raise SystemExit(f"nothing painted within {limit:.0f} s: {seen[-300:]!r}")
        if select.select([terminal], [], [], 0.1)[0]:
            seen += os.read(terminal, 65536)


def first_frame(argv: list[str], mark: bytes, home: Path) -> float:
    """Seconds from the fork to the frame with `mark`."""
    begun = time.monotonic()
    pid, terminal = started(argv, home)
    until_painted(terminal, mark)
    took = time.monotonic() - begun
    end(pid, terminal)
    return took


def idle_share(argv: list[str], mark: bytes, home: Path, seconds: float) -> float:
    """CPU seconds per second, per cent of one core, while nobody types."""
    import psutil

    pid, terminal = started(argv, home)
    until_painted(terminal, mark)
    process = psutil.Process(pid)
    drain(terminal, 5.0)
    before = sum(process.cpu_times()[:2])
    drain(terminal, seconds)
    used = sum(process.cpu_times()[:2]) - before
    end(pid, terminal)
    return 100 * used / seconds


def drain(terminal: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            os.read(terminal, 65536)


def end(pid: int, terminal: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(terminal)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--runs", type=int, default=15)
    options.add_argument("--idle", type=float, default=20.0)
    wanted = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        # No server is started: a port where nothing listens answers at once.
        (home / "servers").mkdir()
        (home / "servers" / "none.toml").write_text(
            'engine = "openai"\nbase_url = "http://127.0.0.1:9"\nmodel = "none"\n'
        )
        (home / "config.toml").write_text('server = "none"\n')
        console, console_mark = [sys.executable, "-m", "vlmconsole"], MARK
        bare, bare_mark = [sys.executable, "-c", BARE], b"bare-is-painted"
        times: dict[str, list[float]] = {"console": [], "bare": []}
        for number in range(wanted.runs + 1):
            pair = (first_frame(console, console_mark, home), first_frame(bare, bare_mark, home))
            if number:  # the first pair fills the page cache
                times["console"].append(pair[0])
                times["bare"].append(pair[1])
        medians = {name: round(statistics.median(some), 3) for name, some in times.items()}
        result = {
            "runs": wanted.runs,
            "first_frame_s": medians,
            "ratio": round(medians["console"] / medians["bare"], 2),
            "idle_percent_of_a_core": round(idle_share(console, console_mark, home, wanted.idle), 2),
            "load_average": os.getloadavg()[0],
        }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
