"""What is kept as JSON in the conversations, read as what it must be: a disk, a tool or a person may have damaged it.

Every reader of an answer's evidence gets it from here, so that none of them has to expect a text for a number.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

#: Said beside an answer of whose evidence a part was left out.
DAMAGED = "its evidence is damaged"

#: More than any count of tokens or seconds; such a number is damage, and no arithmetic or format meets it.
_MOST = 1e15
_DEEPEST = 40  # tables within tables; ours have six
_HALF = re.compile("[\ud800-\udfff]")
_SHA256 = re.compile(r"[0-9a-f]{64}")

Check = Callable[[Any], bool]


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MOST


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_whole, value))


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _table(value: Any) -> bool:
    return isinstance(value, dict)


def _tables(value: Any) -> bool:
    return isinstance(value, list) and all(map(_table, value))


def _difference(value: Any) -> bool:
    """A whole number that may be below 0: prompt tokens with the images less those without, as a server counts."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MOST


def _wholes(value: Any) -> bool:
    return isinstance(value, list) and all(map(_whole, value))


def _whole_or_text(value: Any) -> bool:
    return _whole(value) or _text(value)


def _route(value: Any) -> bool:
    return value in ("loopback", "tunnel", "network")


_USAGE: dict[str, Check] = dict.fromkeys(
    ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens"), _whole
)
_TIMING: dict[str, Check] = {
    **dict.fromkeys(("ttft_s", "tpot_s", "e2e_s", "output_tokens_per_s", "ttfr_s"), _number),
    "tpot_why": _text,
}
_SIGHT: dict[str, Check] = {
    **dict.fromkeys(("name", "sha256", "changes", "method", "state", "why"), _text),
    "sent_size": _pair,
    "expected": _whole,
    "observed": _difference,
}
_ASKED: dict[str, Check] = {"temperature": _number, "max_tokens": _whole, "seed": _whole, "top_p": _number}
_CONDITIONS: dict[str, Check] = {
    **dict.fromkeys(("hardware", "engine", "engine_version", "precision", "adapter"), _text),
    **dict.fromkeys(("model", "asked_model", "model_sha256"), _text),
    **dict.fromkeys(
        (
            "system_sha256",
            "prompt_sha256",
            "template_sha256",
            "image",
            "cache",
            "warm_up",
            "clock",
            "client",
            "client_error",
        ),
        _text,
    ),
    **dict.fromkeys(("client_concurrency", "running_limit", "n"), _whole),
    "input_tokens": _whole_or_text,
    "output_tokens": _whole_or_text,
    "rate": _number,
    "route": _route,
    "settings": _table,
    "quantization": _table,
    "notes": _texts,
    **_ASKED,
}
_SAMPLING: dict[str, Check] = {
    "temperature": lambda value: _number(value) and 0 <= value <= 2,
    "max_tokens": lambda value: _whole(value) and value >= 1,
    "seed": _whole,
    "top_p": lambda value: _number(value) and 0 < value <= 1,
    "since": _whole,
    "adapter": _text,
    "other_base": _flag,
}


class _Reading:
    """Leaves out what is not what it must be, and remembers that it did."""

    def __init__(self) -> None:
        self.damaged = False

    def object(self, text: Any) -> dict[str, Any]:
        try:
            value = json.loads(text, parse_constant=lambda _: None)
        except (TypeError, ValueError, RecursionError):
            value = None
        if isinstance(value, dict) and _sayable(value):
            return value
        self.damaged = True
        return {}

    def table(self, value: Any, checks: Mapping[str, Check], *, loose: bool = True) -> dict[str, Any]:
        """`value` with the checked names that hold what they must; `loose`: null and unchecked names may stand too."""
        if not isinstance(value, dict):
            self.damaged = True
            return {}
        kept = {}
        for name, entry in value.items():
            check = checks.get(name)
            if loose if entry is None or check is None else check(entry):
                kept[name] = entry
            else:
                self.damaged = True
        return kept


def _sayable(value: Any, depth: int = 0) -> bool:
    """Nothing that cannot be written again: endless nesting, `1e999` (read as infinite), half a character."""
    if isinstance(value, dict | list):
        inner = [*value, *value.values()] if isinstance(value, dict) else value
        return depth < _DEEPEST and all(_sayable(member, depth + 1) for member in inner)
    if isinstance(value, str):
        return value.isascii() or not _HALF.search(value)
    return not isinstance(value, float) or math.isfinite(value)


def read_answer(text: Any) -> tuple[dict[str, Any], bool]:
    """(the evidence of an answer in the `chat --json` shape, whether a part of it was damaged and left out)."""
    reading = _Reading()
    whole = reading.object(text)
    plain: dict[str, Check] = {
        **dict.fromkeys(("text", "reasoning", "finish_reason", "ended", "error"), _text),
        "questions_left_out": _whole,
        "settings": _table,
        "streamed": _flag,
        "closed_by_us": _flag,
        "unreadable": _whole,
        "models": _texts,
    }
    answer = reading.table(whole, plain)
    tables: dict[str, Mapping[str, Check]] = {
        "usage": _USAGE,
        "timing": _TIMING,
        "client": {"lag_p99_ms": _number},
        "request": {**_ASKED, "messages": _tables, "message_ids": _wholes, "system": _text, "body_sha256": _text},
    }
    for name, checks in tables.items():
        if answer.get(name) is not None:
            answer[name] = reading.table(answer[name], checks)
    if answer.get("conditions") is not None:
        answer["conditions"] = reading.table(answer["conditions"], _CONDITIONS, loose=False)
    if answer.get("remarks") is not None:
        noted = answer["remarks"] if isinstance(answer["remarks"], list) else [answer["remarks"]]
        answer["remarks"] = [reading.table(remark, {"code": _text, "text": _text}) for remark in noted]
    if answer.get("vision") is not None:
        sights = answer["vision"] if isinstance(answer["vision"], list) else [answer["vision"]]
        answer["vision"] = [reading.table(sight, _SIGHT) for sight in sights]
    return answer, reading.damaged


def read_sampling(text: Any) -> tuple[dict[str, Any], bool]:
    """(how a conversation is asked, whether a part of it was damaged and the usual holds instead)."""
    reading = _Reading()
    whole = reading.table(reading.object(text), _SAMPLING)
    return {name: value for name, value in whole.items() if value is not None}, reading.damaged


def read_facts(sha256: Any, text: Any) -> dict[str, Any] | None:
    """Return what is kept of a picture; None when it is damaged: its hash and its sizes are needed to show it at
    all.
    """
    reading = _Reading()
    needed: dict[str, Check] = {
        **dict.fromkeys(("name", "pixel_sha256", "mime", "note"), _text),
        "size": _pair,
        "original_size": _pair,
        "changes": _texts,
    }
    facts = reading.table(reading.object(text), {**needed, "place": _whole})
    whole = isinstance(sha256, str) and _SHA256.fullmatch(sha256) is not None
    return facts if whole and all(facts.get(name) is not None for name in needed) else None


def read_text(value: Any) -> str:
    """Return a column of text: SQLite keeps whatever was written into it."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def read_time(value: Any) -> float:
    """Return a column of wall-clock seconds that a calendar can show; 0 for what is none."""
    return float(value) if _number(value) and 0 <= value < 253_000_000_000 else 0.0
