"""The worker's pulse: a beat in state.json, its CPU and memory into the events, the log kept small."""

import contextlib
import os
import threading
import time
from typing import NamedTuple

import psutil

from vlmconsole.gauges import nvidia
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.logfile import keep_end
from vlmconsole.text.sizes import size

BEAT = 5.0  # seconds between two beats
LOOK = 0.5  # seconds between two looks at the log, which may grow by hundreds of MB a second
LOG_LIMIT = 16 * 1024 * 1024  # bytes, then log.txt becomes log.1.txt, of which twice as many are kept
KEPT_LOGS = 2


class Rotated(NamedTuple):
    """A log that was moved away: the bytes that are not kept of it or of those before it."""

    dropped: int


class Heartbeat(threading.Thread):
    """Beats until stopped. A full disk must not end it: a beat that cannot be written is left out."""

    def __init__(self, run: RunFolder, beat: float = BEAT, log_limit: int = LOG_LIMIT) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self.run_folder = run
        self.beat = beat
        self.log_limit = log_limit
        self.missed = 0
        self.dropped = 0  # bytes of the log that are not kept
        self._stop_event = threading.Event()
        self._family: dict[int, psutil.Process] = {}
        self._held = {name for name in run.job().get("devices", ()) if name.startswith("gpu")}

    def run(self) -> None:
        due = time.monotonic() + self.beat
        while not self._stop_event.wait(min(self.beat, LOOK)):
            try:
                self._keep_small()
                if time.monotonic() >= due:
                    due = time.monotonic() + self.beat
                    self.run_folder.set_state(None, heartbeat=round(time.time(), 3))
                    self.run_folder.events.emit("sample", **self.sample())
            except OSError:
                self.missed += 1  # the job itself meets the same full disk and says so

    def stop(self) -> None:
        """End the thread and say what is not kept of the log; afterwards nothing of it touches the run folder."""
        self._stop_event.set()
        if self.is_alive():
            self.join()
        with contextlib.suppress(OSError):
            self._keep_small()
            if self.dropped:
                self.run_folder.events.note(f"the log was too long: {size(self.dropped)} of it are not kept", "warning")

    def _keep_small(self) -> None:
        if moved := rotate(self.run_folder, self.log_limit):
            self.dropped += moved.dropped

    def sample(self) -> dict[str, float | int]:
        """CPU (percent of one core) and resident memory (bytes) of the worker and its descendants."""
        me = psutil.Process()
        processes = {me.pid: me, **{child.pid: child for child in me.children(recursive=True)}}
        # cpu_percent counts from the last call on the same object: keep the old ones.
        self._family = {
            pid: self._family[pid] if self._family.get(pid) == process else process
            for pid, process in processes.items()
        }
        cpu, memory = 0.0, 0
        for process in self._family.values():
            try:
                cpu += process.cpu_percent()
                memory += process.memory_info().rss
            except psutil.Error:
                continue  # it ended between the two calls
        host: dict[str, float | int] = {
            "cpu_percent": round(cpu, 1),
            "rss_bytes": memory,
            "processes": len(self._family),
        }
        return host | self._cards()

    def _cards(self) -> dict[str, float | int]:
        """Of the cards that the job holds: its own memory (bytes) and the load (percent, whoever causes it)."""
        figures: dict[str, float | int] = {}
        for card in nvidia.read().cards if self._held else ():
            if card.name in self._held:
                sizes = [size for pid, size in card.processes if pid in self._family and size is not None]
                if sizes:
                    figures[f"{card.name}_bytes"] = sum(sizes)
                if card.utilization_percent is not None:
                    figures[f"{card.name}_percent"] = card.utilization_percent
        return figures


def rotate(run: RunFolder, limit: int = LOG_LIMIT) -> Rotated | None:
    """Move a log past `limit` bytes to log.1.txt (older ones on to log.2.txt); None when it did not.

    Of one that grew past twice the limit before anyone looked only its end is kept, and its first line says so. Copied
    and then truncated rather than renamed: children of the job write to the same open file, and go on in the new log
    this way. What is written between the copy and the cut is lost, and counted.
    """
    size = run.log.stat().st_size if run.log.exists() else 0
    if size <= limit:
        return None
    oldest, last = run.file(f"log.{KEPT_LOGS}.txt"), run.file("log.1.txt")
    lost = oldest.stat().st_size if oldest.exists() and last.exists() else 0
    for number in range(KEPT_LOGS, 1, -1):
        older = run.file(f"log.{number - 1}.txt")
        if older.exists():
            older.replace(run.file(f"log.{number}.txt"))
    lost += keep_end(run.log, last, size, 2 * limit)
    lost += max(0, run.log.stat().st_size - size)
    os.truncate(run.log, 0)
    return Rotated(lost)
