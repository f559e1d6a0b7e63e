"""Numbers with the word they count."""

from __future__ import annotations

from vlmconsole.text.numbers import decimal


def many(number: float, singular: str, others: str = "") -> str:
    """`1 picture`, `2 pictures`, `0 pictures`; `others` where the plural takes more than an s."""
    return f"{decimal(number)} {singular if number == 1 else others or singular + 's'}"


def plain_name(name: str, unit: str = "") -> str:
    """Return a figure's name for people: `client_lag_s` in seconds is `client lag`, `in_flight` is `in flight`."""
    return name.removesuffix(f"_{unit}").replace("_", " ") if unit else name.replace("_", " ")


def of_many(done: float, total: float | None, unit: str) -> str:
    """`12 of 64 pictures`, as far as the total is known; `unit` comes as its job named it, with or without an s."""
    if not unit:
        return decimal(done) if total is None else f"{decimal(done)} of {decimal(total)}"
    last = many(done if total is None else total, unit.removesuffix("s"))
    return last if total is None else f"{decimal(done)} of {last}"
