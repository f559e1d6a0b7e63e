"""From a key to its paint in the chat, idle and while an answer streams. Run by hand, quiet machine.

    python tests/tools/benchmarks/chat_keys.py [--presses 300] [--rate 200] [--base-url URL]

The real console in a pseudo-terminal of 120×40, its own driver included, against the reference server (or the one at
`--base-url`, which must stream at least `--presses` × 0.07 s). Each key is a letter that is not on the screen, so its
paint is the first time that this letter comes out; the clock runs from the write of the key. Between two
keys a pause of 20–60 ms, as in fast typing. The CPU share is the console's own (user and system) over the phase, as a
share of one core. Other work on the machine is in both phases: its load is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pty
import random
import select
import signal
import struct
import sys
import tempfile
import termios
import time
from fcntl import ioctl
from pathlib import Path
from typing import Any

import psutil

from vlmconsole.measure.calibration.reference import Schedule, running
from vlmconsole.scoring.distribution import distribution

#: Letters that take one cell, are typed by no one else, and are never painted but as typed here.
LETTERS = [chr(code) for code in (*range(0x0391, 0x03A2), *range(0x03B1, 0x03CA), *range(0x0410, 0x0450))]
FULL = 40  # letters after which the line is emptied (Ctrl+U), so that it never wraps


class Console:
    """A console process at the other end of a pseudo-terminal."""

    def __init__(self, home: Path) -> None:
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
            for name in ("COLUMNS", "LINES", "TMUX"):
                os.unsetenv(name)
            os.execv(sys.executable, [sys.executable, "-m", "vlmconsole", "--home", str(home)])
        self.process = psutil.Process(self.pid)
        self._seen = b""

    def until(self, mark: bytes, seconds: float) -> None:
        """Read what is painted until it holds `mark`."""
        end = time.perf_counter() + seconds
        while mark not in self._seen:
            left = end - time.perf_counter()
            if left <= 0:
                raise SystemExit(f"{mark!r} was not painted within {seconds:g} s")
            if select.select([self.terminal], [], [], left)[0]:
                self._seen = self._seen[-len(mark) :] + os.read(self.terminal, 1 << 16)
        self._seen = b""

    def rest(self, seconds: float) -> None:
        """Let time pass; what is painted meanwhile is read and thrown away."""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            if select.select([self.terminal], [], [], left)[0]:
                os.read(self.terminal, 1 << 16)
        self._seen = b""

    def type(self, count: int) -> dict[str, Any]:
        """`count` letters, one after another is painted: their times and the CPU share of this phase."""
        pace, taken = random.Random(1), []
        cpu, begun = self._cpu(), time.perf_counter()
        for number in range(count):
            self.rest(pace.uniform(0.02, 0.06))
            if number % FULL == 0:
                os.write(self.terminal, b"\x15")
                self.rest(0.3)
            letter = LETTERS[number % len(LETTERS)].encode()
            at = time.perf_counter()
            os.write(self.terminal, letter)
            self.until(letter, 30)
            taken.append(time.perf_counter() - at)
        wall = time.perf_counter() - begun
        told = distribution(taken)
        figures = {"n": told.n, "p50_ms": told.p50, "p95_ms": told.p95, "max_ms": told.max}
        shown: dict[str, Any] = {k: round(v * 1000, 1) if k.endswith("ms") else v for k, v in figures.items()}
        return {**shown, "cpu_share": round((self._cpu() - cpu) / wall, 3), "wall_s": round(wall, 1)}

    def _cpu(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system

    def end(self) -> None:
        os.kill(self.pid, signal.SIGTERM)
        end = time.perf_counter() + 20
        while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
            with contextlib.suppress(OSError):  # its end closes the terminal
                self.rest(0.05)  # what it still paints must be read, or it would never end
            if time.perf_counter() > end:
                os.kill(self.pid, signal.SIGKILL)
        os.close(self.terminal)


def measure(base_url: str, presses: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "servers").mkdir()
        (home / "servers" / "fast.toml").write_text(f'engine = "openai"\nbase_url = "{base_url}"\n')
        (home / "config.toml").write_text('server = "fast"\npictures = "halfcell"\nmax_tokens = 100000\n')
        found: dict[str, Any] = {"load before": os.getloadavg()[0]}
        console = Console(home)
        try:
            console.until(b"ready", 120)
            console.rest(3)  # what is imported after the first frame
            found["idle"] = console.type(presses)
            print("idle", json.dumps(found), file=sys.stderr)
            os.write(console.terminal, b"\x15Tell me\r")
            console.until("● answering".encode(), 30)
            console.rest(1)
            found["streaming"] = console.type(presses)
            os.write(console.terminal, b"\x15\x03")  # Ctrl+C stops the answer
            console.until("■".encode(), 30)  # the sign of a stopped answer: so it was streaming to the end
        finally:
            console.end()
        found["load after"] = os.getloadavg()[0]
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--presses", type=int, default=300)
    parser.add_argument("--rate", type=float, default=200.0, help="pieces a second")
    parser.add_argument("--base-url", default="")
    asked = parser.parse_args()
    if asked.base_url:
        print(json.dumps(measure(asked.base_url, asked.presses)))
    else:
        with running(Schedule(itl_ms=1000 / asked.rate, tokens=1_000_000)) as reference:
            print(json.dumps(measure(reference.base_url, asked.presses)))
