"""What this machine has for jobs, and what of it someone outside this queue is using."""

import platform
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from vlmconsole.devices.labels import SERVER, TIMED
from vlmconsole.devices.locks import DeviceLocks, Files, server_lock, servers_of
from vlmconsole.gauges import nvidia
from vlmconsole.queue.wants import Devices
from vlmconsole.system import processes
from vlmconsole.system.machine import usable_cores
from vlmconsole.text.sizes import size

# Drivers keep a few hundred MiB on an idle card; more than this share without a visible process is someone unseen.
UNSEEN_SHARE = 0.05
SAME_HOLDER = 60.0  # seconds for which who holds a lock is not looked for again among all processes


class Machine:
    """The devices of this machine: CPU slots (one a core unless told otherwise) and graphics cards."""

    def __init__(
        self,
        locks: DeviceLocks,
        cpu_slots: int | None = None,
        read: Callable[[], nvidia.CardsReading] = nvidia.read,
    ) -> None:
        self.locks = locks
        self.home = Path()  # the lab home that this is looked at from; its supervisor sets it
        self.room: list[int] = []  # the lock that tells others' servers to make room, while we hold it
        self._again: dict[str, list[int]] = {}
        self.cpu_slots = cpu_slots or usable_cores()
        self._read = read
        self.cards: dict[str, nvidia.GpuCard] = {}
        self._holders: dict[str, tuple[str, float]] = {}

    def look(self, ours: Iterable[str] = (), shared: Iterable[str] = (), timed: bool = False) -> Devices:
        """Return the devices as they are now. `ours` are those that jobs of this queue hold, and are not looked into.

        `shared` are the CPU slots among them that our servers are on: another home's work may be on those too.
        `timed`: timed work of ours runs.
        """
        beside_ours = set(shared)
        mine = set(ours) - beside_ours
        # A card that was there once and is not reported now is lost, not forgotten: jobs for it must say so.
        reading = self._read()
        cards = {card.name: card for card in reading.cards}
        for name in self.cards.keys() - cards.keys():
            cards[name] = nvidia.GpuCard(name, lost=reading.why or "the driver no longer reports it")
        self.cards = cards
        gpus = tuple(self.cards) or _mac()
        devices = Devices(self.cpu_slots, gpus)
        outside: dict[str, str] = {}
        shareable: set[str] = set()
        try:
            files = self.locks.files()
        except OSError as error:
            self.ask_for_room(False)
            return Devices(self.cpu_slots, gpus, dict.fromkeys((*devices.cpus(), *gpus), _unusable(error)))
        # Timed work also asks for slots that this home does not count, and for other homes' servers.
        more = [name for name in files if name.startswith(("cpu.", SERVER))]
        for name in dict.fromkeys((*devices.cpus(), *gpus, *more, TIMED)):
            if name in mine or name.startswith(servers_of(self.home)) or (name == TIMED and (timed or self.room)):
                continue
            who = self._foreign(name)
            if not who:
                who, use = self._locked(name, files)
                if use == "work":
                    shareable.add(name)
                elif name in beside_ours:
                    continue  # that is our own server, started by an earlier version
            if who:
                outside[name] = who
        return Devices(self.cpu_slots, gpus, outside, frozenset(shareable))

    def _locked(self, name: str, files: Files) -> tuple[str, str]:
        """Who holds the lock of a device, and how."""
        try:
            use = self.locks.use(name, files)
        except OSError as error:
            return _unusable(error), "alone"
        if not use:
            self._holders.pop(name, None)
            return "", ""
        now = time.monotonic()
        if name not in self._holders or now - self._holders[name][1] > SAME_HOLDER:
            self._holders[name] = self.locks.holder(name), now
        return self._holders[name][0], use

    # --- taking ---
    def take(self, granted: Iterable[str], serves: str | None = None, timed: bool = False) -> list[int] | None:
        """Return the locks of what a job is given, all or none; None when someone was faster. Raises OSError.

        Whoever is not timed work gives way to it also in the last moment, and timed work to what runs: each locks
        its own first and looks then, so that of two who come at once one sees the other.
        """
        files = self.locks.files()
        names, shareable = self._names(granted, serves, timed)
        wanted = [name for name in names if not (self.room and name == TIMED)]
        held = self.locks.take(wanted, alone=timed, beside=shareable, files=files)
        if held is None:
            return None
        if self._met(names, shareable):
            self.locks.release(held)
            return None
        if timed:
            held, self.room = [*held, *self.room], []
        return held

    def _names(self, granted: Iterable[str], serves: str | None, timed: bool) -> tuple[list[str], list[str]]:
        """What is locked for these devices, and the CPU slots that are only used: a server takes none from others."""
        names = lockable(granted)
        cpus = [name for name in names if name.startswith("cpu.")]
        if timed:
            return [*names, TIMED], []
        if not serves or not cpus:
            return names, []
        return [server_lock(self.home, serves), *(name for name in names if name not in cpus)], cpus

    def _met(self, names: Sequence[str], shareable: Sequence[str]) -> bool:
        """Whether another home's work stands against it, now that its own locks are seen by everybody."""
        files = self.locks.files()
        if TIMED not in names:
            on_cpu = bool(shareable) or any(name.startswith("cpu.") for name in names)
            return on_cpu and not self.room and self.locks.held(TIMED, files)
        others = [name for name in files if name.startswith(("cpu.", SERVER)) and name not in names]
        return any(self.locks.held(name, files) for name in others if not name.startswith(servers_of(self.home)))

    def ask_for_room(self, wanted: bool) -> None:
        """Show (or no longer show) other homes' idle servers that timed work waits for nothing but them."""
        if wanted and not self.room:
            self.room = self.locks.take([TIMED]) or []
        elif not wanted and self.room:
            self.locks.release(self.room)
            self.room = []

    def keep(self, held: Iterable[tuple[Sequence[str], str | None, bool]]) -> list[str]:
        """Keep the lock files of our jobs from cleaners, each given as (devices, profile that it serves, timed).

        What was removed all the same is locked again by this process, for the job that thinks it holds it, until it no
        longer does; the names of those are given back.
        """
        names = {name for job in held for name in self._names(*job)[0]}
        for name in self._again.keys() - names:
            self.locks.release(self._again.pop(name))
        lost = []
        for name in sorted(names - self._again.keys()):
            safe = self.locks.use(name) == "alone"  # by the file that earlier versions lock
            if again := self.locks.keep([name]):
                self._again[name] = again
                lost += [] if safe else [name]
        return lost

    def _foreign(self, name: str) -> str:
        """Who uses a card outside this queue, or why it cannot be used."""
        card = self.cards.get(name)
        if card is None:
            return ""
        if card.lost:
            return f"which is lost: {card.lost}"
        if card.processes:
            pid, used = max(card.processes, key=lambda process: process[1] or 0)
            more = f" and {len(card.processes) - 1} more" if len(card.processes) > 1 else ""
            memory = f", {size(used)}" if used is not None else ""
            return f"held by {processes.describe(pid)}{memory}{more}"
        if card.memory_used and card.memory_total and card.memory_used > UNSEEN_SHARE * card.memory_total:
            return (
                f"held by a process that cannot be seen from here (another user or container), {size(card.memory_used)}"
            )
        return ""

    def variables(self, granted: Iterable[str]) -> dict[str, str]:
        """Environment variables that keep a worker on the cards it was given; empty where there are no NVIDIA cards."""
        if not self.cards:
            return {}
        chosen = [self.cards[name] for name in granted if name in self.cards]
        return {"CUDA_VISIBLE_DEVICES": ",".join(card.uuid or card.name.removeprefix("gpu") for card in chosen)}

    def memory_of(self, pids: Iterable[int]) -> dict[str, int]:
        """Return which cards still hold memory of those processes: {card: bytes}."""
        wanted = set(pids)
        left: dict[str, int] = {}
        for card in self._read().cards:
            size = sum(size or 0 for pid, size in card.processes if pid in wanted)
            if size:
                left[card.name] = size
        return left


def lockable(granted: Iterable[str]) -> list[str]:
    """Return the granted devices that are machine-wide, in one order for all (ports and servers belong to one lab)."""
    return sorted(name for name in granted if name.startswith(("cpu.", "gpu")))


def _unusable(error: OSError) -> str:
    """Why nobody can be asked who has a device, and what to do."""
    why = error.strerror or str(error)
    return f"whose lock cannot be used ({why}): set VLMCONSOLE_DEVICE_LOCKS to a folder on a local disk"


def _mac() -> tuple[str, ...]:
    return ("gpu0",) if sys.platform == "darwin" and platform.machine() == "arm64" else ()
