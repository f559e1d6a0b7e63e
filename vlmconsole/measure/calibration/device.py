"""What this machine's devices can do, measured: matrix arithmetic, and memory bandwidth by working set.

Best of many short tries: a ceiling is wanted, not an average. The processor is measured with numpy, and with torch
where it is installed, whichever is faster; a CUDA card with torch. Written to `device.json` in the lab home.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vlmconsole.limits.devices import DevicePeak, from_json
from vlmconsole.measure.machine import hardware
from vlmconsole.measure.machine_load import HostLoad, busy, load_now
from vlmconsole.runs.folder import write_atomic
from vlmconsole.system.machine import usable_cores
from vlmconsole.system.reading import UnreadableError, read_json

FILE = "device.json"
WORKING_SETS = tuple(2**power for power in range(20, 30))  # bytes: 1 MiB to 512 MiB
SIDES = (256, 512, 1024, 2048)  # of square matrices
SECONDS = 0.4  # for each try of one kind and size
CPU, CUDA = "cpu", "cuda"

Try = Callable[[], object]


@dataclass(frozen=True)
class DeviceCalibration:
    """The ceilings measured on this machine, by device (`cpu`, `cuda`). `when` is wall time, seconds."""

    when: float
    hardware: str
    peaks: dict[str, DevicePeak] = field(default_factory=dict)
    host: HostLoad | None = None

    @property
    def remark(self) -> str:
        """What speaks against it: other work on the machine makes its peaks too low; "" for nothing."""
        return busy({"host": asdict(self.host)}) if self.host is not None else ""

    def save(self, path: Path) -> None:
        """Write it where `read_device` finds it."""
        peaks = {name: peak.to_json() for name, peak in self.peaks.items()}
        text = json.dumps({"when": self.when, "hardware": self.hardware, "peaks": peaks}, indent=1)
        write_atomic(path, text + "\n")


def read_device(path: Path, device: str = CPU) -> DevicePeak | None:
    """Return what was measured of a device of this very machine; None where nothing was, or on other hardware."""
    try:
        stored = read_json(path)
    except UnreadableError:
        return None
    if not isinstance(stored, dict) or stored.get("hardware") != hardware():
        return None
    peaks = stored.get("peaks")
    return from_json(peaks.get(device)) if isinstance(peaks, dict) else None


def calibrate_device(on_step: Callable[[str, float], None] = lambda name, value: None) -> DeviceCalibration:
    """Measure this machine; `on_step` gets each figure as it comes (operations or bytes a second). About 10 seconds."""
    before = load_now()
    peaks = {CPU: _cpu(on_step)}
    torch = _torch()
    if torch is not None and torch.cuda.is_available():
        peaks[CUDA] = _cuda(torch, on_step)
    # The load after it would be its own.
    return DeviceCalibration(round(time.time(), 3), hardware(), peaks, HostLoad(before, before, usable_cores()))


def _best(units: float, attempt: Try, seconds: float = SECONDS) -> float:
    """Units a second of the fastest of as many tries as fit, three at least."""
    attempt()  # what is done once: pages, threads, kernels
    best, tries, end = 0.0, 0, time.perf_counter() + seconds
    while tries < 3 or time.perf_counter() < end:
        begun = time.perf_counter()
        attempt()
        best = max(best, units / max(time.perf_counter() - begun, 1e-9))
        tries += 1
    return best


def _cpu(on_step: Callable[[str, float], None]) -> DevicePeak:
    flops: dict[str, float] = {}
    for precision, side, attempt in _products():
        rate = _best(2.0 * side**3, attempt)
        if rate > flops.get(precision, 0.0):
            flops[precision] = rate
            on_step(f"cpu {precision}", rate)
    bandwidth = []
    with ThreadPoolExecutor(usable_cores()) as pool:
        for size in WORKING_SETS:
            values = np.ones(size // 4, np.float32)
            parts = np.array_split(values, usable_cores())
            rate = _best(float(size), partial(_read_all, pool, parts))
            bandwidth.append((float(size), rate))
            on_step(f"cpu reads {size >> 20} MiB", rate)
    # What is smaller than the smallest working set may be read faster still.
    rising = [(size, max(rate for at, rate in bandwidth if at >= size)) for size, rate in bandwidth]
    return DevicePeak(hardware(), ((0.0, float("inf")), *rising), flops, "measured: calibrate --device", measured=True)


def _read_all(pool: ThreadPoolExecutor, parts: list[Any]) -> None:
    for _ in pool.map(_read, parts):
        pass


def _read(values: Any) -> float:
    """Read every byte once; BLAS does it without Python's lock, as fast as one core can."""
    return float(np.dot(values, values))


def _products() -> Iterator[tuple[str, int, Try]]:
    torch = _torch()
    for side in SIDES:
        a = np.random.default_rng(0).random((side, side), np.float32)
        out = np.empty_like(a)
        yield "float32", side, partial(np.matmul, a, a, out=out)
        if torch is not None:
            for kind in ("float32", "bfloat16"):
                b = torch.ones((side, side), dtype=getattr(torch, kind))
                yield kind, side, partial(torch.mm, b, b)


def _cuda(torch: Any, on_step: Callable[[str, float], None]) -> DevicePeak:
    """A CUDA card by torch: products in bfloat16 and TF32, copies of a gigabyte (read and written: twice the bytes)."""
    torch.backends.cuda.matmul.allow_tf32 = True
    flops = {}
    for kind in ("bfloat16", "float32"):
        a = torch.ones((8192, 8192), dtype=getattr(torch, kind), device="cuda")

        def product(a: Any = a) -> None:
            torch.mm(a, a)
            torch.cuda.synchronize()

        flops[kind] = _best(2.0 * 8192**3, product)
        on_step(f"cuda {kind}", flops[kind])
    flops["float16"] = flops["bfloat16"]
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)
        torch.cuda.synchronize()

    rate = _best(2.0 * 2**30, copy)
    on_step("cuda memory", rate)
    cached = 256.0 * 2**20  # what may lie in a card's own cache is read faster: no bound
    bandwidth = ((0.0, float("inf")), (cached, rate))
    return DevicePeak(torch.cuda.get_device_name(0), bandwidth, flops, "measured: calibrate --device", measured=True)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch
