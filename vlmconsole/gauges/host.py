"""The machine itself: CPU, memory and disk."""

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from vlmconsole.system.machine import usable_cores


@dataclass(frozen=True)
class Host:
    """A reading; bytes. `cpu_percent` is of all cores together, since the last reading (None at the first)."""

    cpu_percent: float | None
    cores: int
    memory_total: int
    memory_used: int
    disk_total: int
    disk_free: int
    load1: float


class HostReader:
    """Reads one machine; keeps what CPU percentages are counted from."""

    def __init__(self, disk: Path) -> None:
        self.disk = disk
        self._asked = False

    def read(self) -> Host:
        """Raises OSError when `disk` does not exist."""
        percent = psutil.cpu_percent(interval=None)
        first, self._asked = not self._asked, True
        memory = psutil.virtual_memory()
        disk = psutil.disk_usage(str(self.disk))
        return Host(
            cpu_percent=None if first else percent,
            cores=usable_cores(),
            memory_total=memory.total,
            memory_used=memory.total - memory.available,
            disk_total=disk.total,
            disk_free=disk.free,
            load1=os.getloadavg()[0],
        )
