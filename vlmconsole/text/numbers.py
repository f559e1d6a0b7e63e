"""Numbers as people read them. Files and JSON keep every digit; what is made here is for screens and reports."""

from __future__ import annotations

UNKNOWN = "–"
LARGEST = 1e300  # beyond it, arithmetic on a foreign file's number would overflow
GROUPED = 9999.5  # from here on thousands are set apart: 9999, 10,000


def number(value: object) -> float | None:
    """Return a finite number of a foreign file, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < LARGEST else None


def whole(value: object) -> int | None:
    """Return a whole number of a foreign file, 3 or 3.0, else None."""
    amount = number(value)
    return int(amount) if amount is not None and amount == int(amount) else None


def figure(value: object, digits: int = 3) -> str:
    """Return a measured figure to `digits` significant digits, whole numbers in full: `0.0610`, `85.1`, `12,345`.

    Trailing zeros stay, so that decimals line up in a column. A dash for what is no number: unknown is never zero.
    """
    amount = number(value)
    if amount is None:
        return UNKNOWN
    size = abs(amount)
    if size < 1e15 and (amount == int(amount) or size >= 10**digits - 0.5):
        return _in_full(amount)
    text = f"{amount:#.{digits}g}".removesuffix(".")
    return f"{amount:.{digits}g}" if "e" in text else text


def decimal(value: float) -> str:
    """Return a number that is known exactly (a setting, a limit, a tick), with the digits that it has: `0.25`, `16`."""
    if abs(value) < 1e15 and value == int(value):
        return _in_full(value)
    return f"{value:,.6g}" if abs(value) >= GROUPED else f"{value:.6g}"


def percent(share: object, places: int = 1, unit: str = " %") -> str:
    """Return a share from 0 to 1 in per cent: `97.4 %`."""
    amount = number(share)
    return UNKNOWN if amount is None else f"{100 * amount:.{places}f}{unit}"


def signed(value: float, places: int = 4) -> str:
    """Return a difference with its sign, the minus as wide as the plus: `+0.0312`, `−0.0312`; what rounds to zero has
    none.
    """
    text = f"{value:+.{places}f}"
    return text.replace("-", "−") if text.strip("+-0.") else text[1:]


def change(share: float) -> str:
    """Return a relative change in per cent: `+12.5 %`, `−3.0 %`."""
    return f"{signed(100 * share, 1)} %"


def _in_full(value: float) -> str:
    """All digits of a whole number; those of five and more in groups of thousands."""
    rounded = round(value)
    return f"{rounded:,}" if abs(rounded) >= GROUPED else str(rounded)
