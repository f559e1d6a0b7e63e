"""What a device can do at most: matrix arithmetic and memory bandwidth, from a table or measured on this machine.

Figures of the table are the makers' own, dense (no sparsity), with boost clocks: an upper bound that a real device does
not pass. Devices whose maker publishes no arithmetic peak have a bandwidth alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlmconsole.text.numbers import number

TERA, GIGA = 1e12, 1e9
CACHE = 256 * 2.0**20  # bytes: no listed device has a larger cache; what may lie in it is read without a known bound


@dataclass(frozen=True)
class DevicePeak:
    """One device's ceiling. `flops`: floating-point operations a second by the precision they are done in.

    `bandwidth`: (working set in bytes, bytes a second) in rising order; where caches were measured, a smaller working
    set is read faster. `source` says where the figures are from.
    """

    name: str
    bandwidth: tuple[tuple[float, float], ...]
    flops: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    measured: bool = False

    def bandwidth_of(self, working_set: float) -> float:
        """Bytes a second at most for a working set of so many bytes; infinite where no bound is known for one so small.

        That of the largest known working set that is no larger.
        """
        return next(rate for size, rate in reversed(self.bandwidth) if size <= working_set)

    def flops_of(self, precision: str) -> float | None:
        """Operations a second at most: of its fastest format for one that has no entry; None where none is known."""
        return self.flops.get(precision, max(self.flops.values(), default=None))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "name": self.name,
            "bandwidth": [list(pair) for pair in self.bandwidth if math.isfinite(pair[1])],
            "flops": dict(self.flops),
            "source": self.source,
            "measured": self.measured,
        }


def from_json(value: Any) -> DevicePeak | None:
    """Return the inverse of `DevicePeak.to_json`; None for anything else."""
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        return None
    pairs, flops = value.get("bandwidth"), value.get("flops")
    if not isinstance(pairs, Sequence) or not pairs or not isinstance(flops, Mapping):
        return None
    bandwidth = []
    for pair in pairs:
        if not isinstance(pair, Sequence) or len(pair) != 2 or not all((number(n) or 0) > 0 for n in pair):
            return None
        bandwidth.append((float(pair[0]), float(pair[1])))
    known = {str(kind): float(rate) for kind, rate in flops.items() if (number(rate) or 0) > 0}
    return DevicePeak(
        value["name"],
        ((0.0, math.inf), *sorted(bandwidth)),
        known,
        str(value.get("source", "")),
        value.get("measured") is True,
    )


#: pattern in a product's name → (TFLOP/s dense in bfloat16 or float16, in float8, GB/s, source). The first that fits.
_TABLE: tuple[tuple[str, float | None, float | None, float, str], ...] = (
    (r"\bB200\b", 2250, 4500, 8000, "NVIDIA Blackwell architecture, HGX B200"),
    (r"\bGH200\b|\bH200\b", 989.4, 1978.9, 4900, "NVIDIA H200 / GH200 data sheet (4.8–4.9 TB/s)"),
    (r"\bH100 NVL\b", 835.5, 1670.5, 3938, "NVIDIA H100 data sheet, NVL"),
    (r"\bH100 PCIe\b", 756.4, 1512.9, 2039, "NVIDIA H100 data sheet, PCIe"),
    (r"\bH100\b|\bH800\b", 989.4, 1978.9, 3352, "NVIDIA H100 data sheet, SXM"),
    (r"\bH20\b", 148, 296, 4000, "NVIDIA H20 data sheet"),
    (r"\bA100\b.*80|\bA800\b", 311.9, None, 2039, "NVIDIA A100 data sheet, 80 GB SXM"),
    (r"\bA100\b", 311.9, None, 1555, "NVIDIA A100 data sheet, 40 GB"),
    (r"\bA30\b", 165.1, None, 933, "NVIDIA A30 data sheet"),
    (r"\bA10G?\b", 125, None, 600, "NVIDIA A10 data sheet"),
    (r"\bL40S\b", 362.1, 733, 864, "NVIDIA L40S data sheet"),
    (r"\bL40\b", 181.1, 362, 864, "NVIDIA L40 data sheet"),
    (r"\bL4\b", 121, 242.5, 300, "NVIDIA L4 data sheet"),
    (r"\bRTX (PRO )?6000 Blackwell\b", 503.8, 1007.6, 1792, "NVIDIA RTX PRO 6000 Blackwell data sheet"),
    (r"\bRTX 6000 Ada\b", 364.2, 728.5, 960, "NVIDIA RTX 6000 Ada data sheet"),
    (r"\bRTX A6000\b", 154.8, None, 768, "NVIDIA RTX A6000 data sheet"),
    (r"\bRTX 5090\b", 419, 838, 1792, "NVIDIA RTX Blackwell architecture, FP16 accumulation"),
    (r"\bRTX 4090\b", 330.3, 660.6, 1008, "NVIDIA Ada architecture, FP16 accumulation"),
    (r"\bRTX 3090\b", 142, None, 936, "NVIDIA Ampere GA102 architecture, FP16 accumulation"),
    (r"\bV100\b", 125, None, 900, "NVIDIA V100 data sheet"),
    (r"\bT4\b", 65, None, 320, "NVIDIA T4 data sheet"),
    (r"\bMI355X\b", 2516.6, 5033.2, 8000, "AMD Instinct MI355X data sheet"),
    (r"\bMI325X\b", 1307.4, 2614.9, 6000, "AMD Instinct MI325X data sheet"),
    (r"\bMI300X\b", 1307.4, 2614.9, 5300, "AMD Instinct MI300X data sheet"),
    (r"\bMI300A\b", 980.6, 1961.2, 5300, "AMD Instinct MI300A data sheet"),
    (r"\bMI250X?\b", 383, None, 3277, "AMD Instinct MI250X data sheet"),
    (r"\bMI210\b", 181, None, 1638, "AMD Instinct MI210 data sheet"),
    (r"\bApple M1 Ultra\b", None, None, 800, "Apple, M1 Ultra"),
    (r"\bApple M1 Max\b", None, None, 400, "Apple, M1 Max"),
    (r"\bApple M1 Pro\b", None, None, 200, "Apple, M1 Pro"),
    (r"\bApple M1\b", None, None, 68.25, "Apple, M1 (LPDDR4X-4266, 128 bits)"),
    (r"\bApple M2 Ultra\b", None, None, 800, "Apple, M2 Ultra"),
    (r"\bApple M2 Max\b", None, None, 400, "Apple, M2 Max"),
    (r"\bApple M2 Pro\b", None, None, 200, "Apple, M2 Pro"),
    (r"\bApple M2\b", None, None, 100, "Apple, M2"),
    (r"\bApple M3 Ultra\b", None, None, 819, "Apple, M3 Ultra"),
    (r"\bApple M3 Max\b", None, None, 400, "Apple, M3 Max (the larger one)"),
    (r"\bApple M3 Pro\b", None, None, 150, "Apple, M3 Pro"),
    (r"\bApple M3\b", None, None, 100, "Apple, M3"),
    (r"\bApple M4 Max\b", None, None, 546, "Apple, M4 Max (the larger one)"),
    (r"\bApple M4 Pro\b", None, None, 273, "Apple, M4 Pro"),
    (r"\bApple M4\b", None, None, 120, "Apple, M4"),
)


def known_device(product: str) -> DevicePeak | None:
    """Return the table's entry for a product's name, as NVML or the system tells it; None where it has none.

    Of a MIG slice nothing is known: its share of a card's arithmetic and bandwidth is not in its name.
    """
    if "MIG" in product:
        return None
    for pattern, half, eighth, bandwidth, source in _TABLE:
        if re.search(pattern, product):
            flops = {"bfloat16": half, "float16": half, "float8": eighth}
            # float32 models may be multiplied in TF32, at half the rate of 16-bit formats.
            known = {kind: rate * TERA for kind, rate in flops.items() if rate is not None}
            if half is not None:
                known["float32"] = half / 2 * TERA
            return DevicePeak(product, ((0.0, math.inf), (CACHE, bandwidth * GIGA)), known, source)
    return None


def devices_of(hardware: str) -> tuple[DevicePeak, int] | None:
    """(one device, how many) of a line as conditions hold it: `AMD EPYC 7B13, 2 × NVIDIA A100-SXM4-80GB`.

    None where no device of the line is in the table, or where several kinds are: which of them answers is not known.
    """
    matches: list[tuple[DevicePeak, int]] = []
    for part in hardware.split(","):
        counted = re.fullmatch(r"\s*(?:(\d+)\s*[×x]\s*)?(.+?)\s*", part)
        if counted is None:
            continue
        peak = known_device(counted[2])
        if peak is not None:
            matches.append((peak, int(counted[1] or 1)))
    return matches[0] if len(matches) == 1 else None
