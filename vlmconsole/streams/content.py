"""What one `delta` or `message` of an answer holds: words, reasoning, a refusal, tool calls, and forms not known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

THOUGHTS = frozenset({"thinking", "reasoning", "reasoning.text", "reasoning.summary", "reasoning_text", "summary_text"})
"""Types of parts that hold reasoning, whatever field it is in."""
SILENT = frozenset({"redacted_thinking", "reasoning.encrypted"})
"""Types of parts that hold no words by their nature."""
CALLS = frozenset({"tool_use", "tool_call", "function_call"})


@dataclass(slots=True)
class Content:
    """The contents of one; calls: keys of the tool calls that it begins or goes on with; strange: parts not known."""

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: set[str] = field(default_factory=set)
    strange: int = 0


def held(holder: dict[str, Any]) -> Content:
    """Reads a `delta` or `message` as servers fill them; what is there in no known form is counted, never dropped."""
    made = Content()
    if len(holder) == 1 and isinstance(text := holder.get("content"), str):  # nearly always so
        made.text = text
        return made
    _parts(holder.get("content"), made)
    details = holder.get("reasoning_details")
    named = (plain_text(holder.get(name)) for name in ("reasoning_content", "reasoning", "thinking"))
    made.reasoning += next(filter(None, named), "") or ("" if made.reasoning else plain_text(details))
    if isinstance(refusal := holder.get("refusal"), str):
        made.refusal += refusal
    calls = holder.get("tool_calls")
    for place, call in enumerate(calls if isinstance(calls, list) else ()):
        number = call.get("index") if isinstance(call, dict) else None
        made.calls.add(str(number if isinstance(number, int) else place))
    if isinstance(calls, dict) and calls:
        made.calls.add("0")
    if holder.get("function_call"):
        made.calls.add("function")
    return made


def _parts(content: Any, made: Content) -> None:
    if content is None:
        return
    if isinstance(content, str):
        made.text += content
        return
    for place, part in enumerate(content if isinstance(content, list) else [content]):
        _part(part, place, made)


def _part(part: Any, place: int, made: Content) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(part, str):
        made.text += part
    elif part is None or (isinstance(kind, str) and kind in SILENT) or part == {}:
        return
    elif not isinstance(part, dict):
        made.strange += 1
    elif isinstance(kind, str) and kind in CALLS:
        made.calls.add(f"part {place}")
    elif isinstance(kind, str) and kind in THOUGHTS:
        made.reasoning += next(
            filter(None, (plain_text(part.get(name)) for name in ("thinking", "reasoning", "text"))), ""
        )
    elif isinstance(part.get("refusal"), str):
        made.refusal += part["refusal"]
    elif isinstance(part.get("text"), str):
        made.text += part["text"]
    else:
        made.strange += 1


def plain_text(content: Any) -> str:
    """Return the text of a field: a string, or a list of parts of which the text parts count; else nothing."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    return ""
