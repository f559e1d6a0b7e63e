"""Figures in their unit: seconds in ms or s, bytes in KiB to TiB, shares in per cent, everything else as it is."""

from __future__ import annotations

from collections.abc import Iterable

from vlmconsole.text.numbers import UNKNOWN, decimal, figure, percent
from vlmconsole.text.sizes import size, size_of, unit_for
from vlmconsole.text.times import latency

_PLACES = {"share": 0}  # decimals of per cent, here as everywhere


def in_unit(value: float | None, unit: str) -> str:
    """`430 ms`, `21.3 GiB`, `97 %`, `1042 tok/s`: never more than three digits that count; a dash for none."""
    if value is None:
        return UNKNOWN
    if unit == "s":
        return latency(value)
    if unit == "bytes":
        return size(value)
    return percent(value, 0) if unit == "share" else f"{figure(value)} {unit}".rstrip()


def of_total(value: float | None, total: float | None, unit: str) -> str:
    """`21.3 of 31.9 GiB`, `4 of 8`; a dash for no value."""
    if value is None or total is None:
        return in_unit(value, unit)
    return size_of(value, total) if unit == "bytes" else f"{in_unit(value, unit)} of {decimal(total)}"


def scale(unit: str, values: Iterable[float | None]) -> tuple[float, str]:
    """(factor, unit) for `values` that are written with their unit once: that of the largest."""
    largest = max((value for value in values if value is not None), default=0.0)
    if unit == "s":
        return (1.0, "s") if largest >= 0.9995 else (1e3, "ms")
    if unit == "bytes":
        factor, name = unit_for(largest)
        return 1 / factor, name
    return (100.0, "%") if unit == "share" else (1.0, unit)


def spread(value: float | None, p50: float | None, p95: float | None, unit: str, width: int) -> tuple[str, str]:
    """(value, its p50 and p95) in `width` cells, 16 or more. The spread has its units, or all share the value's."""
    shown = "" if value is None else in_unit(value, unit)
    text = " ".join(f"{name} {in_unit(part, unit)}" for name, part in (("p50", p50), ("p95", p95)) if part is not None)
    if p50 is None or p95 is None or len(text) <= width:
        return shown, text
    factor, name = scale(unit, (value, p50, p95))
    if unit in ("s", "bytes") and value is not None:
        shown = f"{figure(value * factor)} {name}"
    for digits in ((3, 3), (2, 2), (1, 2), (1, 1)):
        half, most = (
            _squeezed(round(part * factor, _PLACES.get(unit, 9)), count)
            for part, count in zip((p50, p95), digits, strict=True)
        )
        for text in (f"p50 {half} p95 {most}", f"p50/95 {half}/{most}"):
            if len(text) <= width:
                return shown, text
    return shown, text


def _squeezed(value: float, digits: int) -> str:
    """A number in few cells: `10.9`, `.075`, `<.01`, `12k`."""
    size = abs(value)
    if size >= 9999.5:
        return f"{value / 1000:.0f}k"
    if not size:
        return "0"
    if size < 0.01 and (digits == 1 or size < 0.001):
        return "<.01" if digits == 1 else "<.001"
    if size < 0.9995:
        return f"{value:.{digits}g}".replace("0.", ".", 1)
    before = 1 if size < 9.995 else 2 if size < 99.95 else 3
    text = f"{value:.{max(0, digits - before)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
