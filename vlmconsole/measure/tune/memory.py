"""The memory that a server takes while it is measured: VRAM where there is an NVIDIA card, else resident memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from vlmconsole.gauges import nvidia
from vlmconsole.servers import processes
from vlmconsole.servers.processes import Running

EVERY_S = 0.2  # between two samples
LOOK_S = 2.0  # between two looks which processes the server has
NEVER = "no sample could be taken"


@dataclass
class Peak:
    """The largest sample, bytes. Sampling sees no peak that is shorter than `every_s`, and the text says so."""

    kind: str = "RAM"  # or VRAM
    peak_bytes: int | None = None
    samples: int = 0
    every_s: float = EVERY_S
    what: str = NEVER

    def add(self, size: int, kind: str, what: str) -> None:
        if kind != self.kind:  # a card's figures and the processor's are never mixed
            self.kind, self.peak_bytes, self.samples = kind, None, 0
        self.peak_bytes = max(size, self.peak_bytes or 0)
        self.samples += 1
        self.what = what

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@contextmanager
def sampled(running: Running | None) -> Iterator[Peak]:
    """Sample the server's memory in a thread until the block ends; `running` None (not ours) gives no samples."""
    peak = Peak()
    if running is None:
        yield peak
        return
    ended = threading.Event()
    thread = threading.Thread(target=_sample, args=(running, peak, ended), daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join(5.0)


def _sample(running: Running, peak: Peak, ended: threading.Event) -> None:
    cards = bool(nvidia.read().cards)
    looked, members = float("-inf"), [running.pid]
    while True:
        if time.monotonic() - looked >= LOOK_S:
            members, looked = processes.members(running), time.monotonic()
        if cards:
            _add_cards(peak, members)
        else:
            _add_resident(peak, members)
        if ended.wait(EVERY_S):
            return


def _add_cards(peak: Peak, members: list[int]) -> None:
    """Memory used on the cards that the server's processes are on; on all where the driver does not tell whose."""
    cards = [card for card in nvidia.read().cards if card.memory_used is not None]
    own = [card for card in cards if any(pid in members for pid, _ in card.processes)]
    used = own or cards
    if used:
        size = sum(card.memory_used or 0 for card in used)
        names = " + ".join(card.name for card in used)
        whose = "with whatever else is on it" if own else "which processes are on it is not told"
        peak.add(
            size, "VRAM", f"memory used on {names}, {whose}; sampled every {EVERY_S:g} s, shorter peaks are missed"
        )


def _add_resident(peak: Peak, members: list[int]) -> None:
    size = 0
    for pid in members:
        try:
            size += psutil.Process(pid).memory_info().rss
        except psutil.Error:
            continue  # ended meanwhile
    if size:
        several = f" of {len(members)} processes, pages that they share counted in each" if len(members) > 1 else ""
        peak.add(size, "RAM", f"resident memory{several}; sampled every {EVERY_S:g} s, shorter peaks are missed")
