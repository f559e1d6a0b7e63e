"""The GPUs of another machine over SSH: one kept `nvidia-smi` that reports every second, or the console there."""

from __future__ import annotations

import json
import math
import os
import selectors
import subprocess
import time
from collections.abc import Iterable

from vlmconsole.gauges.figures import Batch, Figure, SourceError
from vlmconsole.gauges.machine import card_figures
from vlmconsole.gauges.nvidia import GpuCard
from vlmconsole.remote.ssh import SshHost, end, explain, run
from vlmconsole.text.plain import beginning
from vlmconsole.text.sizes import MIB

FIELDS = "count,index,name,uuid,memory.used,memory.total,utilization.gpu,power.draw,temperature.gpu"
QUERY = f"exec nvidia-smi --query-gpu={FIELDS} --format=csv,noheader,nounits -l 1"
CONSOLE = "exec vlmconsole gauges --once --json"
FIRST, NEXT = 12.0, 2.5  # seconds that the first and every later report may take
OTHER_WORDS = 1.0  # seconds for the rest of what is no report, and for the end of whoever said it
CONSOLE_EVERY = 10.0  # seconds between two readings through the console there: each starts a Python
_LACKING = ("not found", "No such file", "127")


def parse_nvidia_smi(lines: Iterable[str]) -> list[GpuCard]:
    """Cards from nvidia-smi's CSV lines of :data:`FIELDS` (no header, no units; memory in MiB).

    What a card does not tell (`[N/A]`, `[Not Supported]`, `[Unknown Error]`) is None. Raises SourceError when
    a line is no such line: nvidia-smi writes its errors there too.
    """
    cards = []
    for line in lines:
        if not line.strip():
            continue
        try:
            _, index, product, uuid, used, total, use, power, temperature = map(str.strip, line.split(","))
            number = int(index)
        except ValueError:
            raise SourceError(f"nvidia-smi: {beginning(line)}") from None
        memory_used, memory_total, percent, degrees = map(_told, (used, total, use, temperature))
        cards.append(
            GpuCard(
                name=f"gpu{number}",
                uuid=uuid,
                product=product,
                memory_total=round(memory_total * MIB) if memory_total else None,
                memory_used=round(memory_used * MIB) if memory_used is not None and memory_total else None,
                utilization_percent=None if percent is None else round(percent),
                temperature_c=None if degrees is None else round(degrees),
                power_w=_told(power),
            )
        )
    return cards


def _told(field: str) -> float | None:
    """A number, or None for what stands in brackets in its place."""
    try:
        number = float(field)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


class FarGpu:
    """The source of one SSH host's GPUs."""

    keys: tuple[str, ...] = ()

    def __init__(self, host: SshHost) -> None:
        self.name = f"gpu@{host.name}"
        self.slow = 0.0
        self._host = host
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._through_console = False

    def read(self) -> Batch:
        if self._through_console:
            return self._console()
        fresh = self._process is None
        try:
            lines = self._report(FIRST if fresh else NEXT)
        except _Ended as ended:
            self.close()
            if any(part in ended.said for part in _LACKING):
                self._through_console = True  # no NVIDIA tools there: a Mac perhaps
                return self._console()
            if ended.by_the_tool:
                code = "" if ended.code is None else f" (exit code {ended.code})"
                raise SourceError(f"nvidia-smi on {self._host.name}: {beginning(ended.said)}{code}") from None
            fault = explain(self._host, ended.said, ended.code)
            raise SourceError(fault.message, fault.hint) from None
        except TimeoutError:
            self.close()
            raise SourceError(f"{self._host.name} sent no GPU report in time") from None
        figures: dict[str, Figure] = {}
        for card in parse_nvidia_smi(lines):
            figures |= card_figures(card, f"@{self._host.name}")
        return Batch(self.name, time.time(), figures)

    def close(self) -> None:
        """End the far nvidia-smi: without its reader it stops at its next line."""
        if self._process is not None:
            end(self._process)
        self._process, self._rest = None, b""

    def _report(self, within: float) -> list[str]:
        """The newest whole report: as many lines as the machine has cards. Raises TimeoutError or _Ended."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._host.command(remote=QUERY),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        process = self._process
        assert process.stdout is not None and process.stderr is not None
        until = time.monotonic() + within
        with selectors.DefaultSelector() as watched:
            watched.register(process.stdout, selectors.EVENT_READ)
            while True:
                *ended, torn = self._rest.split(b"\n")
                whole = [line.decode("utf-8", "replace") for line in ended if line.strip()]
                count = _count(whole)
                if count and len(whole) >= count:
                    taken = len(whole) - len(whole) % count
                    self._rest = b"".join(f"{line}\n".encode() for line in whole[taken:]) + torn
                    return whole[taken - count : taken]
                if whole and not count:  # its reason for giving none; it ends after it
                    until = min(until, time.monotonic() + OTHER_WORDS)
                left = until - time.monotonic()
                if left <= 0 or not watched.select(left):
                    if whole and not count:
                        raise _Ended(whole, "", None)
                    raise TimeoutError
                data = os.read(process.stdout.fileno(), 65536)
                if not data:
                    process.wait(2.0)
                    stderr = process.stderr.read(4096).decode("utf-8", "replace")
                    last = torn.decode("utf-8", "replace")
                    raise _Ended([*whole, last] if last.strip() else whole, stderr, process.returncode)
                self._rest = (self._rest + data)[-262144:]

    def _console(self) -> Batch:
        """What `vlmconsole gauges` says there; its tiles of the machine become ours, with its name."""
        self.slow = CONSOLE_EVERY
        try:
            text = run(self._host, f"{CONSOLE}\n", timeout=30)
            tiles = json.loads(text)["tiles"]
        except (ValueError, KeyError, TypeError):
            raise SourceError(f"the console on {self._host.name} sent an unknown answer") from None
        except Exception:
            self._through_console = False  # perhaps nvidia-smi is there by now
            raise
        figures = {}
        for key, tile in tiles.items():
            head, _, rest = key.rpartition(".")
            if head.startswith(("gpu", "host")) and "@" not in head and tile.get("value") is not None:
                figures[f"{head}@{self._host.name}.{rest}"] = Figure(tile["value"], total=tile.get("total"))
        if not figures:
            raise SourceError(f"the console on {self._host.name} sees no GPU there")
        return Batch(self.name, time.time(), figures)


class _Ended(Exception):
    """The far nvidia-smi gave no report: what it printed, what came on standard error, and ssh's exit code.

    nvidia-smi names its cause on standard output. What ssh itself says (code 255) is on standard error, where a banner
    or a warning may stand as well.
    """

    def __init__(self, printed: list[str], error: str, code: int | None) -> None:
        super().__init__(error)
        reasons = [line.strip() for line in printed if not _count([line])]
        self.by_the_tool = bool(reasons) and code != 255
        self.code = code
        self.said = " ".join(reasons[:3]) if self.by_the_tool else error
        if code == 127:
            self.said = f"127 {self.said}"


def _count(lines: list[str]) -> int:
    """How many cards the machine has, by the first field of the newest line; 0 for a line that is no report's."""
    first, comma, _ = lines[-1].partition(",") if lines else ("", "", "")
    first = first.strip()
    return int(first) if comma and first.isascii() and first.isdigit() and len(first) < 4 else 0
