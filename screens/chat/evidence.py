"""What stands behind an answer, as text to read."""

from __future__ import annotations

import json
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
        parts.append(("Damaged", f"{DAMAGED}: invalid fields are left out here and in exports"))
    for title, key in (
        ("Conditions", "conditions"),
        ("Usage (as sent by the server)", "usage_raw"),
        ("Timing (seconds)", "timing"),
        ("Image tokens", "vision"),
        ("Client", "client"),
        ("Request (images by hash)", "request"),
    ):
        if answer.get(key):
            parts.append((title, json.dumps(answer[key], ensure_ascii=False, indent=2)))
    if message.reasoning:
        parts.append(("Reasoning", message.reasoning))
    return [*parts, ("Answer (raw)", message.text)]
