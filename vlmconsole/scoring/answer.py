"""The counting task's answer, strictly: exactly one JSON object with exactly two counts, and nothing else."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn

FIELDS = ("red_circles", "blue_squares")
LARGEST_COUNT = 9999  # no 448×448 picture holds more visible objects; beyond it a "count" is noise


@dataclass(frozen=True)
class CountAnswer:
    """Two counts, 0 to LARGEST_COUNT."""

    red_circles: int
    blue_squares: int


@dataclass(frozen=True)
class Invalid:
    """An answer that is not in the format; `reason` is for people."""

    reason: str


class _Refused(ValueError):
    """Raised inside the JSON reader at the first thing that the format forbids."""


def parse_counts(text: object) -> CountAnswer | Invalid:
    """`{"red_circles": 3, "blue_squares": 2}` as a CountAnswer; anything else as Invalid with its reason.

    JSON's own white space around the object is allowed. Invalid: other text around it, repeated, missing or
    extra fields, and every value that is not a plain whole number from 0 to LARGEST_COUNT (booleans, floats,
    text, null, nested values, negative or huge numbers).
    """
    if not isinstance(text, str):
        return Invalid("there is no answer text")
    if not text.strip():
        return Invalid("the answer is empty")
    try:
        value = json.loads(
            text, object_pairs_hook=_pairs, parse_int=_whole, parse_float=_fraction, parse_constant=_fraction
        )
    except _Refused as refusal:
        return Invalid(str(refusal))
    except RecursionError:
        return Invalid("nested too deeply")
    except json.JSONDecodeError as error:
        return Invalid(_why_not_json(text, error))
    if not isinstance(value, dict):
        return Invalid("not a JSON object")
    missing = [name for name in FIELDS if name not in value]
    if missing:
        return Invalid(f"missing field {missing[0]}")
    if len(value) > len(FIELDS):
        return Invalid("extra fields")
    for name in FIELDS:
        if type(value[name]) is not int:
            return Invalid(f"{name} is {_kind(value[name])}, not a whole number")
    return CountAnswer(value["red_circles"], value["blue_squares"])


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _Refused("a field is given twice")
    return value


def _whole(digits: str) -> int:
    if digits.startswith("-"):
        raise _Refused("a negative number")
    if len(digits) > len(str(LARGEST_COUNT)):  # before int(): thousands of digits are slow or refused there
        raise _Refused("a number too large to be a count")
    return int(digits)


def _fraction(text: str) -> NoReturn:
    raise _Refused("a number that is not whole")


def _kind(value: object) -> str:
    if value is None:
        return "null"
    kinds: list[tuple[type, str]] = [(bool, "a boolean"), (str, "text"), (list, "a list"), (dict, "an object")]
    return next(label for kind, label in kinds if isinstance(value, kind))


def _why_not_json(text: str, error: json.JSONDecodeError) -> str:
    if error.msg == "Extra data":
        return "text after the object"
    if "{" in text and not text.lstrip(" \t\r\n").startswith("{"):
        return "text before the object"
    return "not JSON"
