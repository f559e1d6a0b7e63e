"""What this machine has for jobs, and what of it someone outside this queue is using."""

import platform
import sys
from collections.abc import Callable, Iterable

from vlmconsole.gauges import nvidia
from vlmconsole.queue.locks import DeviceLocks
from vlmconsole.queue.schedule import Devices
from vlmconsole.runs import processes
from vlmconsole.runs.machine import usable_cores

# Drivers keep a few hundred MiB on an idle card; more than this share without a visible process is someone unseen.
UNSEEN_SHARE = 0.05


class Machine:
    """The devices of this machine: CPU slots (one a core unless told otherwise) and graphics cards."""

    def __init__(
        self,
        locks: DeviceLocks,
        cpu_slots: int | None = None,
        read: Callable[[], nvidia.Reading] = nvidia.read,
    ) -> None:
        self.locks = locks
        self.cpu_slots = cpu_slots or usable_cores()
        self._read = read
        self.cards: dict[str, nvidia.Card] = {}
        self._holders: dict[str, str] = {}

    def look(self, ours: Iterable[str] = ()) -> Devices:
        """The devices as they are now. ``ours`` are those that jobs of this queue hold, and are not looked into."""
        mine = set(ours)
        # A card that was there once and is not reported now is lost, not forgotten: jobs for it must say so.
        reading = self._read()
        found = {card.name: card for card in reading.cards}
        for name in self.cards.keys() - found.keys():
            found[name] = nvidia.Card(name, lost=reading.why or "the driver no longer reports it")
        self.cards = found
        gpus = tuple(self.cards) or _mac()
        devices = Devices(self.cpu_slots, gpus)
        taken: dict[str, str] = {}
        for name in (*devices.cpus(), *gpus):
            if name in mine:
                continue
            who = self._foreign(name) or self._locked(name)
            if who:
                taken[name] = who
        return Devices(self.cpu_slots, gpus, taken)

    def _locked(self, name: str) -> str:
        if not self.locks.held(name):
            self._holders.pop(name, None)
            return ""
        if name not in self._holders:
            self._holders[name] = self.locks.holder(name)
        return self._holders[name]

    def _foreign(self, name: str) -> str:
        """Who uses a card outside this queue, or why it cannot be used."""
        card = self.cards.get(name)
        if card is None:
            return ""
        if card.lost:
            return f"which is lost: {card.lost}"
        if card.processes:
            pid, size = max(card.processes, key=lambda one: one[1] or 0)
            more = f" and {len(card.processes) - 1} more" if len(card.processes) > 1 else ""
            memory = f", {size / nvidia.GIB:.1f} GiB" if size is not None else ""
            return f"held by {processes.describe(pid)}{memory}{more}"
        if card.memory_used and card.memory_total and card.memory_used > UNSEEN_SHARE * card.memory_total:
            memory = f"{card.memory_used / nvidia.GIB:.1f} GiB"
            return f"held by a process that cannot be seen from here (another user or container), {memory}"
        return ""

    def variables(self, granted: Iterable[str]) -> dict[str, str]:
        """Environment variables that keep a worker on the cards it was given; empty where there are no NVIDIA cards."""
        if not self.cards:
            return {}
        chosen = [self.cards[name] for name in granted if name in self.cards]
        return {"CUDA_VISIBLE_DEVICES": ",".join(card.uuid or card.name.removeprefix("gpu") for card in chosen)}

    def memory_of(self, pids: Iterable[int]) -> dict[str, int]:
        """Which cards still hold memory of those processes: {card: bytes}."""
        wanted = set(pids)
        left: dict[str, int] = {}
        for card in self._read().cards:
            size = sum(size or 0 for pid, size in card.processes if pid in wanted)
            if size:
                left[card.name] = size
        return left


def lockable(granted: Iterable[str]) -> list[str]:
    """The granted devices that are machine-wide, in one order for all (ports and servers belong to one lab)."""
    return sorted(name for name in granted if name.startswith(("cpu.", "gpu")))


def _mac() -> tuple[str, ...]:
    return ("gpu0",) if sys.platform == "darwin" and platform.machine() == "arm64" else ()
