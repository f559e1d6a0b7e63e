"""The worker's pulse: a beat in state.json, its CPU and memory into the events, the log kept small."""

import os
import shutil
import threading
import time

import psutil

from vlmconsole.gauges import nvidia
from vlmconsole.runs.folder import RunFolder

BEAT = 5.0  # seconds between two beats
LOG_LIMIT = 16 * 1024 * 1024  # bytes, then log.txt becomes log.1.txt
KEPT_LOGS = 2


class Heartbeat(threading.Thread):
    """Beats until stopped. A full disk must not end it: a beat that cannot be written is left out."""

    def __init__(self, run: RunFolder, beat: float = BEAT, log_limit: int = LOG_LIMIT) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self.run_folder = run
        self.beat = beat
        self.log_limit = log_limit
        self.missed = 0
        self._stop_event = threading.Event()
        self._family: dict[int, psutil.Process] = {}
        self._held = {name for name in run.job().get("devices", ()) if name.startswith("gpu")}

    def run(self) -> None:
        while not self._stop_event.wait(self.beat):
            try:
                self.run_folder.set_state(None, heartbeat=round(time.time(), 3))
                rotate(self.run_folder, self.log_limit)
                self.run_folder.events.emit("sample", **self.sample())
            except OSError:
                self.missed += 1  # the job itself meets the same full disk and says so

    def stop(self) -> None:
        """End the thread; afterwards nothing of it touches the run folder."""
        self._stop_event.set()
        if self.is_alive():
            self.join()

    def sample(self) -> dict[str, float | int]:
        """CPU (percent of one core) and resident memory (bytes) of the worker and its descendants."""
        me = psutil.Process()
        found = {me.pid: me, **{child.pid: child for child in me.children(recursive=True)}}
        # cpu_percent counts from the last call on the same object: keep the old ones.
        self._family = {
            pid: self._family[pid] if self._family.get(pid) == process else process for pid, process in found.items()
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
        found: dict[str, float | int] = {}
        for card in nvidia.read().cards if self._held else ():
            if card.name in self._held:
                sizes = [size for pid, size in card.processes if pid in self._family and size is not None]
                if sizes:
                    found[f"{card.name}_bytes"] = sum(sizes)
                if card.utilization_percent is not None:
                    found[f"{card.name}_percent"] = card.utilization_percent
        return found


def rotate(run: RunFolder, limit: int = LOG_LIMIT) -> bool:
    """Move a log past ``limit`` bytes to log.1.txt (older ones on to log.2.txt). True when it did.

    Copied and then truncated rather than renamed: children of the job write to the same open file, and go on
    in the new log this way. A line written between the copy and the cut is lost.
    """
    if not run.log.exists() or run.log.stat().st_size <= limit:
        return False
    for number in range(KEPT_LOGS, 1, -1):
        older = run.file(f"log.{number - 1}.txt")
        if older.exists():
            older.replace(run.file(f"log.{number}.txt"))
    shutil.copyfile(run.log, run.file("log.1.txt"))
    os.truncate(run.log, 0)
    return True
