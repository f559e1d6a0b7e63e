"""What stands behind an answer, as text to read; and what a person may set for the next one, checked."""

from __future__ import annotations

import json
from typing import Any

from vlmconsole.chats.records import StoredMessage


def evidence(message: StoredMessage) -> list[tuple[str, str]]:
    """Headed parts of an answer's evidence: how it ended, conditions, usage as sent, timing, proof, the request."""
    answer = message.answer or {}
    ended = f"{message.state}{': ' + message.error if message.error else ''}"
    parts = [("How it ended", ended)]
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


def checked_sampling(values: dict[str, str]) -> dict[str, Any]:
    """Temperature 0–2 and a ceiling of at least one token. Raises ValueError naming what is allowed."""
    try:
        temperature = float(values["temperature"])
        max_tokens = int(values["max_tokens"])
    except ValueError:
        raise ValueError("temperature is a number and longest answer a whole number of tokens") from None
    if not 0 <= temperature <= 2:
        raise ValueError("temperature must be between 0 and 2")
    if max_tokens < 1:
        raise ValueError("the longest answer must be at least 1 token")
    return {"temperature": temperature, "max_tokens": max_tokens}
