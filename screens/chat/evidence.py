"""What stands behind an answer, as text to read; and what a person may set for the next one, checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from vlmconsole.chats.checked import DAMAGED
from vlmconsole.chats.records import StoredMessage


def evidence(message: StoredMessage, request: dict[str, Any] | None = None) -> list[tuple[str, str]]:
    """Headed parts of an answer's evidence: how it ended, conditions, usage as sent, timing, proof, the request.

    `request`: the request with its messages in full, where the message has them by reference.
    """
    answer = {**(message.answer or {}), **({"request": request} if request else {})}
    ended = f"{message.state}{': ' + message.error if message.error else ''}"
    parts = [("How it ended", ended)]
    if message.damaged:
        parts.append(("Damaged", f"{DAMAGED}: what is not what it must be is left out here and in exports"))
    for title, key in (
        ("Conditions", "conditions"),
        ("Usage, as the server sent it", "usage_raw"),
        ("Timing, seconds", "timing"),
        ("Proof of sight", "vision"),
        ("Client", "client"),
        ("Request (pictures by their hash)", "request"),
    ):
        if answer.get(key):
            parts.append((title, json.dumps(answer[key], ensure_ascii=False, indent=2)))
    if message.reasoning:
        parts.append(("Reasoning", message.reasoning))
    return [*parts, ("Answer, as it came", message.text)]


def checked_sampling(values: dict[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """What may be set, by name, and what is wrong with the other fields, in words, by theirs.

    Temperature 0–2 and a ceiling of at least one token; `seed` (a whole number from 0) and `top_p` (above 0, at most 1)
    may be left empty, and then are None: the server's own.
    """
    kept: dict[str, Any] = {}
    faults: dict[str, str] = {}
    for name, kind, fits, said, may_be_empty in _SAMPLING:
        written = values.get(name, "").strip()
        try:
            value = None if may_be_empty and not written else kind(written)
        except ValueError:
            value = -1
        if value is None or fits(value):
            kept[name] = value
        else:
            faults[name] = said
    return kept, faults


_SAMPLING: tuple[tuple[str, Callable[[str], Any], Callable[[Any], bool], str, bool], ...] = (
    ("temperature", float, lambda value: 0 <= value <= 2, "a number from 0 to 2", False),
    ("max_tokens", int, lambda value: value >= 1, "a whole number of tokens, at least 1", False),
    ("seed", int, lambda value: 0 <= value < 2**31, "a whole number from 0, or empty", True),
    ("top_p", float, lambda value: 0 < value <= 1, "a number above 0, at most 1, or empty", True),
)
