"""Sizes in bytes as people read them: binary units, three significant digits."""

from __future__ import annotations

from vlmconsole.text.numbers import decimal

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
UNITS = ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
NEXT = 0.9995  # of a unit, from which three digits would be written as its whole


def size(count: float) -> str:
    """`count` bytes in the largest unit that leaves at least 1: `812 B`, `36 KiB`, `1.23 GiB`."""
    factor, unit = unit_for(count)
    amount = count / factor
    whole = factor == 1 or abs(amount) >= 999.5
    return f"{decimal(round(amount) if whole else float(f'{amount:.3g}'))} {unit}"


def unit_for(count: float) -> tuple[int, str]:
    """(bytes, name) of the unit that `count` bytes are written in."""
    return next(((factor, unit) for factor, unit in UNITS if abs(count) >= NEXT * factor), (1, "B"))


def signed_size(count: float) -> str:
    """Return a difference of sizes: `+12.5 MiB`, `−3 KiB`."""
    return size(count) if not round(count) else f"{'+' if count > 0 else '−'}{size(abs(count))}"


def size_of(part: float, total: float) -> str:
    """`21.3 of 31.9 GiB`, the unit once where both have the same."""
    shown, whole = size(part), size(total)
    unit = f" {whole.rpartition(' ')[2]}"
    return f"{shown.removesuffix(unit)} of {whole}"
