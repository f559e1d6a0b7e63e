"""Token counts as servers report them, under the names that they use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MOST_TOKENS = 10**9  # a count beyond is a slip of the server's, so it is unknown


@dataclass(slots=True)
class Usage:
    """Token counts as the server reported them: the last non-null value of each field, None where there was none."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    image_tokens: int | None = None
    reasoning_tokens: int | None = None
    zero_prompt: bool = False
    """True when it said 0 prompt tokens: no request has none, so the number is left out."""
    events: int = 0
    """How many events carried a usage object."""
    raw: list[dict[str, Any]] = field(default_factory=list)


def read_usage(raw: dict[str, Any], usage: Usage) -> None:
    """Takes the non-null numbers of one usage object into `usage`; knows the names that servers use."""
    usage.events += 1
    details = _first_dict(raw, "prompt_tokens_details", "input_tokens_details")
    out = _first_dict(raw, "completion_tokens_details", "output_tokens_details")
    images = _first_dict(details, "multimodal_tokens")
    counts = {
        "prompt_tokens": _count(raw, "prompt_tokens", "input_tokens"),
        "completion_tokens": _count(raw, "completion_tokens", "output_tokens"),
        "cached_tokens": _count(details, "cached_tokens"),
        "image_tokens": _count(details, "image_tokens"),
        "reasoning_tokens": _count(out, "reasoning_tokens"),
    }
    if counts["cached_tokens"] is None:
        counts["cached_tokens"] = _count(raw, "cached_tokens", "cache_read_input_tokens", "prompt_cache_hit_tokens")
    if counts["image_tokens"] is None:
        counts["image_tokens"] = _count(images, "image")
    if counts["reasoning_tokens"] is None:
        counts["reasoning_tokens"] = _count(raw, "reasoning_tokens")
    if counts["prompt_tokens"] == 0:
        counts["prompt_tokens"], usage.zero_prompt = None, True
    for name, number in counts.items():
        if number is not None:
            setattr(usage, name, number)


def _first_dict(holder: dict[str, Any], *names: str) -> dict[str, Any]:
    return next((holder[name] for name in names if isinstance(holder.get(name), dict)), {})


def _count(holder: dict[str, Any], *names: str) -> int | None:
    for name in names:
        number = holder.get(name)
        if isinstance(number, float) and number.is_integer():
            number = int(number)
        if isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= MOST_TOKENS:
            return number
    return None
