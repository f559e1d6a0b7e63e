"""Numbers with the word they count."""

from __future__ import annotations


def many(number: float, one: str, others: str = "") -> str:
    """`1 picture`, `2 pictures`, `0 pictures`; `others` where the plural takes more than an s."""
    return f"{number:.15g} {one if number == 1 else others or one + 's'}"


def plain_name(name: str, unit: str = "") -> str:
    """A figure's name for people: `client_lag_s` in seconds is `client lag`, `in_flight` is `in flight`."""
    return name.removesuffix(f"_{unit}").replace("_", " ") if unit else name.replace("_", " ")


def signed(value: float, digits: int = 4) -> str:
    """A difference with its sign, the minus as wide as the plus: `+0.0312`, `−0.0312`."""
    return f"{value:+.{digits}f}".replace("-", "−")


def of_many(done: float, total: float | None, unit: str) -> str:
    """`12 of 64 pictures`, as far as the total is known; `unit` comes as its job named it, with or without an s."""
    if not unit:
        return f"{done:g}" if total is None else f"{done:g} of {total:g}"
    last = many(done if total is None else total, unit.removesuffix("s"))
    return last if total is None else f"{done:g} of {last}"
