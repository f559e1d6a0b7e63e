"""What is wrong in a person's TOML or JSON file, key by key, from what pydantic found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MOST = 3  # wrong keys named


def wrong_keys(errors: Sequence[Any]) -> str:
    """`errors` of a ValidationError as one line, without what only follows from a fault deeper inside."""
    places = [tuple(error["loc"]) for error in errors]
    first = [
        error
        for error, place in zip(errors, places, strict=True)
        if not any(len(other) > len(place) and other[: len(place)] == place for other in places)
    ]
    more = f"; and {len(first) - MOST} more" if len(first) > MOST else ""
    return "; ".join(_told(error) for error in first[:MOST]) + more


def _told(error: Any) -> str:
    where = "".join(f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in error["loc"])[1:]
    said = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "missing":
        return f"{where} is missing"
    if error["type"] == "extra_forbidden":
        return f"there is no key {where}"
    return f"{where}: {said[:1].lower()}{said[1:]}" if where else said
