"""The GPUs of another machine over SSH: one kept `nvidia-smi` that reports every second, or the console there."""

from __future__ import annotations

import json
import math
import os
import selectors
import subprocess
import time
from collections.abc import Iterable

from vlmconsole.engines.ssh import SshHost, end, explain, run
from vlmconsole.gauges.figures import Batch, Figure, SourceError, beginning
from vlmconsole.gauges.machine import card_figures
from vlmconsole.gauges.nvidia import Card

FIELDS = "count,index,name,uuid,memory.used,memory.total,utilization.gpu,power.draw,temperature.gpu"
QUERY = f"exec nvidia-smi --query-gpu={FIELDS} --format=csv,noheader,nounits -l 1"
CONSOLE = "exec vlmconsole gauges --once --json"
MIB = 1024**2
FIRST, NEXT = 12.0, 2.5  # seconds that the first and every later report may take
CONSOLE_EVERY = 10.0  # seconds between two readings through the console there: each starts a Python
_LACKING = ("not found", "No such file", "127")


def parse_nvidia_smi(lines: Iterable[str]) -> list[Card]:
    """Cards from nvidia-smi's CSV lines of :data:`FIELDS` (no header, no units; memory in MiB).

    What a card does not tell (``[N/A]``, ``[Not Supported]``, ``[Unknown Error]``) is None. Raises SourceError when
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
            raise SourceError(f"nvidia-smi there says {beginning(line)}") from None
        memory_used, memory_total, percent, degrees = map(_told, (used, total, use, temperature))
        cards.append(
            Card(
                name=f"gpu{number}",
                uuid=uuid,
                product=product,
                memory_total=None if memory_total is None else round(memory_total * MIB),
                memory_used=None if memory_used is None else round(memory_used * MIB),
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
            fault = explain(self._host, ended.said, ended.code)
            raise SourceError(fault.message, fault.hint) from None
        except TimeoutError:
            self.close()
            raise SourceError(f"{self._host.name} sent no report of its GPUs in time") from None
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
                whole = self._rest[: self._rest.rfind(b"\n") + 1].decode("utf-8", "replace").splitlines()
                count = _count(whole)
                if count and len(whole) >= count:
                    taken = len(whole) - len(whole) % count
                    self._rest = b"".join(line + b"\n" for line in self._rest.split(b"\n")[taken:-1])
                    return whole[taken - count : taken]
                left = until - time.monotonic()
                if left <= 0 or not watched.select(left):
                    raise TimeoutError
                data = os.read(process.stdout.fileno(), 65536)
                if not data:
                    process.wait(2.0)
                    said = process.stderr.read(4096).decode("utf-8", "replace")
                    raise _Ended(said or " ".join(whole[-3:]), process.returncode)
                self._rest = (self._rest + data)[-262144:]

    def _console(self) -> Batch:
        """What `vlmconsole gauges` says there; its tiles of the machine become ours, with its name."""
        self.slow = CONSOLE_EVERY
        try:
            text = run(self._host, f"{CONSOLE}\n", timeout=30)
            tiles = json.loads(text)["tiles"]
        except (ValueError, KeyError, TypeError):
            raise SourceError(f"the console on {self._host.name} answers otherwise than known") from None
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
    """The far nvidia-smi ended: its last words and ssh's exit code."""

    def __init__(self, said: str, code: int | None) -> None:
        super().__init__(said)
        self.said, self.code = said if code != 127 else f"127 {said}", code


def _count(lines: list[str]) -> int:
    """How many cards the machine has, by the first field of the newest line; 1 for a line that is an error."""
    if not lines:
        return 0
    first = lines[-1].partition(",")[0].strip()
    return int(first) if first.isdigit() and int(first) > 0 else 1
