"""Options to choose from beside a question: part of its text, or the row is refused. Never dropped in silence."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from vlmconsole.text.plain import one_line

_KEYS = {"options", "choices", "candidates", "option", "choice", "answer_choices", "multiple_choices", "distractors"}
_LETTERED = re.compile(r"(?:(?:option|choice|candidate|op|opt)[_ -]?)?([a-j]|[0-9])", re.IGNORECASE)
_QUOTED = re.compile(r"""'([^']*)'|"([^"]*)\"""")


def missing_options(row: Mapping[str, Any], question: str) -> str:
    """Return why a row's options cannot be used; "" where it has none, or its question holds each of them."""
    keys = _option_keys(row)
    if not keys:
        return ""
    texts = [text for key in keys for text in listed_texts(row[key])]
    asked = _plain(question)
    missing = [text for text in texts if not re.search(rf"(?<!\w){re.escape(_plain(text))}(?!\w)", asked)]
    if not missing:
        return ""
    shown = ", ".join(one_line(key, 40) for key in keys)
    what = f"“{one_line(missing[0], 40)}” of {shown}"
    return f"the question does not hold {what}, so the model would not see it: write the options into the question"


def _option_keys(row: Mapping[str, Any]) -> list[str]:
    held = [key for key, value in row.items() if isinstance(key, str) and value is not None]
    lettered = {match[1].lower(): key for key in held if (match := _LETTERED.fullmatch(key.strip()))}
    # One single letter may be anything; two that follow one another are a list of options.
    first = next((pair for pair in ("ab", "01", "12") if set(pair) <= set(lettered)), "")
    return [key for key in held if key.lower() in _KEYS or (first and key in lettered.values())]


def listed_texts(value: Any) -> list[str]:
    """Return the texts of a cell of options: a list, a list written as text, a table, or tables with `text`."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = _listed(value)  # some datasets hold their list as text
    if isinstance(value, Mapping):
        value = [part for held in value.values() for part in (held if isinstance(held, list) else [held])]
    if not isinstance(value, (list, tuple)):
        value = [value]
    texts = (str(part["text"] if isinstance(part, Mapping) and "text" in part else part) for part in value)
    return [text for text in texts if text.strip()]


def _listed(text: str) -> list[Any]:
    """A list written as JSON, or as Python writes one: ['a', "b"]."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return [first or second for first, second in _QUOTED.findall(text)] or [text]
    return value if isinstance(value, list) else [value]


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
