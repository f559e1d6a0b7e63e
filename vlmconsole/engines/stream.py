"""The chat stream of an OpenAI-compatible server → text, usage and time stamps. Pure: the caller reads and stamps.

What is unknown stays None: output tokens come from the server's `usage` alone and are never guessed from chunks or
words; absent cached tokens are not zero. Definitions of times are in `engines.timing`.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

from vlmconsole.engines.sse import Event, EventSplitter
from vlmconsole.runs.redaction import redact

MAX_TEXT = 16 * 1024 * 1024
"""Characters kept of an answer; the rest is dropped and the result says so."""
MOST_TOKENS = 10**9  # a count beyond is a slip of the server's, so it is unknown
MAX_RAW_USAGE = 16
"""How many raw usage objects are kept (the last ones); some servers send one with every token."""

Ended = Literal["done", "cut", "error", "cancelled"]


@dataclass(frozen=True, slots=True)
class Delta:
    """A non-empty piece of an answer. at: seconds on the clock of the caller."""

    kind: Literal["text", "reasoning"]
    text: str
    at: float


@dataclass(slots=True)
class Usage:
    """Token counts as the server reported them: the last non-null value of each field, None where there was none."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    image_tokens: int | None = None
    reasoning_tokens: int | None = None
    events: int = 0
    """How many events carried a usage object."""
    raw: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class Stamps:
    """When things happened, seconds on one clock; None for what did not happen."""

    sent: float | None = None
    first_byte: float | None = None
    first_any: float | None = None
    first_reasoning: float | None = None
    first_text: float | None = None
    last_text: float | None = None
    done: float | None = None
    ended: float | None = None
    text_pieces: list[float] = field(default_factory=list)


@dataclass(slots=True)
class StreamResult:
    """What a stream said. `ended`: "done" ([DONE] seen), "cut" (it stopped before), "error", or "cancelled" (by us)."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    usage: Usage = field(default_factory=Usage)
    stamps: Stamps = field(default_factory=Stamps)
    error: str | None = None
    error_code: int | None = None
    ended: Ended = "cut"
    model: str | None = None
    events: int = 0
    """JSON events seen; [DONE] and comments do not count."""
    unreadable: int = 0
    """Events that were no JSON object, and lines too long to keep."""
    streamed: bool = True
    """False when the server answered with one whole JSON body: then no time inside the answer is known."""


class StreamParser:
    """Feed the body of one response, however it is split; then read `result`.

    sent: when the request was sent, on the clock of `feed`'s times.
    """

    def __init__(self, sent: float | None = None) -> None:
        self.result = StreamResult(stamps=Stamps(sent=sent))
        self._events = EventSplitter()
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._kept = 0
        self._half = {"text": "", "reasoning": ""}
        self._raw: deque[dict[str, Any]] = deque(maxlen=MAX_RAW_USAGE)
        self._last = 0.0
        self._finished = False
        self._answers = 0  # choices seen, with text or without

    def feed(self, data: bytes, at: float) -> list[Delta]:
        """The pieces that these bytes completed. at: seconds when they were read."""
        if data and self.result.stamps.first_byte is None:
            self.result.stamps.first_byte = at
        self._last = at
        return self._take(self._events.feed(data, at))

    def finish(self, at: float, *, cancelled: bool = False) -> list[Delta]:
        """The body ended (or, cancelled, we closed it); gives the pieces that were still held.

        Safe to call twice; the first call counts.
        """
        if self._finished:
            return []
        self._finished = True
        deltas = self._take(self._events.finish(self._last))
        result = self.result
        result.unreadable += self._events.dropped
        if result.events == 0 and result.stamps.done is None:
            self._whole_body(bytes(self._events.stray), deltas)
        for kind, half in self._half.items():
            if half:  # the second half of a surrogate pair never came
                (self._text if kind == "text" else self._reasoning).append("�")
        result.text, result.reasoning = "".join(self._text), "".join(self._reasoning)
        result.usage.raw = list(self._raw)
        result.stamps.ended = at
        if result.stamps.done is not None and not self._answers:
            # An empty answer is an answer; a stream that never held one is a fault of the server (or of a proxy).
            self._fail(f"the stream ended without an answer in it ({result.events} events, none with choices)")
        if result.error is not None:
            result.ended = "error"
        elif result.stamps.done is not None:
            result.ended = "done"
        else:
            result.ended = "cancelled" if cancelled else "cut"
        return deltas

    def _take(self, events: list[Event]) -> list[Delta]:
        deltas: list[Delta] = []
        for event in events:
            if self.result.stamps.done is not None:
                break  # nothing after [DONE] belongs to this answer
            if event.data.strip() == "[DONE]":
                self.result.stamps.done = event.at
                continue
            self._event(event, deltas)
        return deltas

    def _event(self, event: Event, deltas: list[Delta]) -> None:
        result = self.result
        try:
            value = json.loads(event.data)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            if event.name == "error":
                self._fail(event.data)
            else:
                result.unreadable += 1
            return
        result.events += 1
        if result.stamps.first_any is None:
            result.stamps.first_any = event.at
        if event.name == "error" or is_error(value):
            self._fail(value)
        self._body(value, event.at, deltas)

    def _body(self, value: dict[str, Any], at: float, deltas: list[Delta]) -> None:
        result = self.result
        if isinstance(value.get("model"), str):
            result.model = value["model"]
        if isinstance(value.get("usage"), dict):
            self._raw.append(value["usage"])
            read_usage(value["usage"], result.usage)
        choices = value.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict) or choice.get("index") not in (None, 0):
                continue
            self._answers += 1
            if isinstance(choice.get("finish_reason"), str):
                result.finish_reason = choice["finish_reason"]
            said = choice.get("delta") or choice.get("message")
            if isinstance(said, dict):
                reasoning = plain_text(said.get("reasoning_content")) or plain_text(said.get("reasoning"))
                self._piece("reasoning", reasoning, at, deltas)
                self._piece("text", plain_text(said.get("content")), at, deltas)

    def _piece(self, kind: Literal["text", "reasoning"], text: str, at: float, deltas: list[Delta]) -> None:
        if not text:
            return
        text = self._half[kind] + text
        self._half[kind] = ""
        if "\ud800" <= text[-1] <= "\udbff":
            # JSON may escape one character as two halves, and a server may put them into two events.
            self._half[kind] = text[-1]
            text = text[:-1]
        stamps = self.result.stamps
        if kind == "reasoning":
            stamps.first_reasoning = at if stamps.first_reasoning is None else stamps.first_reasoning
        else:
            stamps.first_text = at if stamps.first_text is None else stamps.first_text
            stamps.last_text = at
            stamps.text_pieces.append(at)
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if text else ""
        if self._kept + len(text) > MAX_TEXT:
            self._fail(f"the answer passed {MAX_TEXT} characters; the rest was dropped")
            return
        self._kept += len(text)
        if text:
            (self._text if kind == "text" else self._reasoning).append(text)
            deltas.append(Delta(kind, text, at))

    def _whole_body(self, body: bytes, deltas: list[Delta]) -> None:
        """A body without events: an error in JSON, a whole answer in JSON, or a page that is neither."""
        text = body.decode("utf-8", "replace").strip()
        if not text:
            return
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            self._fail(f"no chat stream came back, but: {text}")
        elif is_error(value):
            self._fail(value)
        elif isinstance(value.get("choices"), list):
            self.result.streamed = False
            self._body(value, self._last, deltas)
            self.result.stamps.done = self._last
        else:
            self._fail(f"no chat stream came back, but: {text}")

    def _fail(self, what: Any) -> None:
        if self.result.error is None:
            self.result.error, self.result.error_code = error_text(what), error_code(what)


def plain_text(content: Any) -> str:
    """The text of a `content` field: a string, or a list of parts of which the text parts count; else nothing."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    return ""


def is_error(value: dict[str, Any]) -> bool:
    """True for an error object: nested (`error`), flat (`object: error`), FastAPI's (`detail`)."""
    return bool(value.get("error")) or value.get("object") == "error" or ("detail" in value and "choices" not in value)


def error_text(value: Any, limit: int = 300) -> str:
    """One line that says what the server reported, from any of the shapes in which servers do.

    Python traces and long data are cut off; at most `limit` characters, without keys that the server repeats.
    """
    if isinstance(value, dict):
        inner = _first_said(value) or value
        value = inner if inner is value else error_text(inner, limit)
        if isinstance(value, dict):
            value = json.dumps(value, ensure_ascii=False, default=str)
    elif isinstance(value, list):
        parts = []
        for item in value[:3]:
            if isinstance(item, dict) and isinstance(item.get("msg"), str):
                where = ".".join(str(part) for part in item.get("loc") or ())
                parts.append(f"{where}: {item['msg']}" if where else item["msg"])
            else:
                parts.append(str(item))
        value = "; ".join(parts)
    line = " ".join("".join(c if c.isprintable() else " " for c in str(value)).split()).split(' File "')[0]
    line = redact(line)  # before it is cut: half a key is a leak, too
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _first_said(value: dict[str, Any]) -> Any:
    return next((value[name] for name in ("error", "message", "error_message", "detail") if value.get(name)), None)


def error_code(value: Any) -> int | None:
    """The HTTP-like code inside an error object, or None."""
    inner = value.get("error") if isinstance(value, dict) else None
    for holder in (inner, value):
        code = holder.get("code") if isinstance(holder, dict) else None
        if isinstance(code, int) and not isinstance(code, bool):
            return code
    return None


def read_usage(raw: dict[str, Any], usage: Usage) -> None:
    """Takes the non-null numbers of one usage object into `usage`; knows the names that servers use."""
    usage.events += 1
    details = _first_dict(raw, "prompt_tokens_details", "input_tokens_details")
    out = _first_dict(raw, "completion_tokens_details", "output_tokens_details")
    images = _first_dict(details, "multimodal_tokens")
    found = {
        "prompt_tokens": _count(raw, "prompt_tokens", "input_tokens"),
        "completion_tokens": _count(raw, "completion_tokens", "output_tokens"),
        "cached_tokens": _count(details, "cached_tokens"),
        "image_tokens": _count(details, "image_tokens"),
        "reasoning_tokens": _count(out, "reasoning_tokens"),
    }
    if found["cached_tokens"] is None:
        found["cached_tokens"] = _count(raw, "cached_tokens", "cache_read_input_tokens", "prompt_cache_hit_tokens")
    if found["image_tokens"] is None:
        found["image_tokens"] = _count(images, "image")
    if found["reasoning_tokens"] is None:
        found["reasoning_tokens"] = _count(raw, "reasoning_tokens")
    for name, number in found.items():
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
