"""This machine as sources: its CPU, RAM and disk, its NVIDIA cards, and a Mac's unified memory."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

from vlmconsole.gauges import nvidia
from vlmconsole.gauges.figures import Batch, Figure, SourceError
from vlmconsole.gauges.host import HostReader


class HostSource:
    """CPU, RAM and the disk that holds the lab home."""

    name = "host"
    keys = ("host.cpu", "host.memory", "host.disk")
    slow = 0.0

    def __init__(self, disk: Path) -> None:
        self._reader = HostReader(disk)

    def read(self) -> Batch:
        try:
            host = self._reader.read()
        except OSError as error:
            raise SourceError(f"cannot read this machine: {error}") from None
        share = None if host.cpu_percent is None else host.cpu_percent / 100
        used = host.disk_total - host.disk_free
        return Batch(
            self.name,
            time.time(),
            {
                "host.cpu": Figure(share, note=f"of {host.cores} cores; load {host.load1:.1f}"),
                "host.memory": Figure(host.memory_used, total=host.memory_total),
                "host.disk": Figure(used, total=host.disk_total, note=str(self._reader.disk)),
            },
        )

    def close(self) -> None:
        """Nothing is held."""


class NvidiaSource:
    """The NVIDIA cards of this machine, through NVML."""

    name = "gpu"
    keys: tuple[str, ...] = ()  # which cards there are is only known from the first answer
    slow = 0.0

    def read(self) -> Batch:
        reading = nvidia.read()
        if not reading.cards:
            raise SourceError(f"no NVIDIA GPU: {reading.why}")
        figures: dict[str, Figure] = {}
        for card in reading.cards:
            figures |= card_figures(card)
        return Batch(self.name, time.time(), figures)

    def close(self) -> None:
        """The NVML session is shared with the rest of the process."""


def card_figures(card: nvidia.GpuCard, where: str = "") -> dict[str, Figure]:
    """Return a card's tiles; `where` is `@host` for another machine's card. What it does not tell is left empty."""
    name = f"{card.name}{where}"
    missing = card.lost or f"not reported by {card.product}"

    def figure(value: float | None, total: float | None = None) -> Figure:
        return Figure(value, total=total, note=missing if value is None else card.product)

    use = None if card.utilization_percent is None else card.utilization_percent / 100
    return {
        f"{name}.memory": figure(card.memory_used, card.memory_total),
        f"{name}.use": figure(use),
        f"{name}.power": figure(card.power_w),
        f"{name}.temperature": figure(card.temperature_c),
    }


class AppleSource:
    """A Mac's unified memory, which CPU and GPU share: `vm_stat` and `sysctl`. Untested on a real Mac so far."""

    name = "apple"
    keys = ("host.unified",)
    slow = 0.0

    @staticmethod
    def here() -> bool:
        """Return whether this machine is a Mac."""
        return sys.platform == "darwin"

    def read(self) -> Batch:
        used = parse_vm_stat(_ask("/usr/bin/vm_stat"))
        total = int(_ask("/usr/sbin/sysctl", "-n", "hw.memsize"))
        try:
            limit = int(_ask("/usr/sbin/sysctl", "-n", "iogpu.wired_limit_mb"))
        except (SourceError, ValueError):
            limit = 0  # older systems lack the key; 0 is Apple's own word for "the default"
        note = f"the GPU may wire {limit} MiB" if limit else "the GPU may wire the system's default, about 3/4"
        return Batch(self.name, time.time(), {"host.unified": Figure(used, total=total, note=note)})

    def close(self) -> None:
        """Nothing is held."""


def parse_vm_stat(text: str) -> float:
    """Bytes in use by `vm_stat`: active, wired and compressed pages. Raises SourceError when it reads otherwise."""
    page = re.search(r"page size of (\d+) bytes", text)
    counts = [
        re.search(rf"^{name}:\s+(\d+)\.?$", text, re.MULTILINE)
        for name in ("Pages active", "Pages wired down", "Pages occupied by compressor")
    ]
    if page is None or not all(counts):
        raise SourceError("unknown vm_stat output")
    return float(page[1]) * sum(float(count[1]) for count in counts if count is not None)


def _ask(*words: str) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=2, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise SourceError(f"{words[0]} failed: {error}") from None
    return done.stdout
