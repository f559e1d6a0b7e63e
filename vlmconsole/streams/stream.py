"""The chat stream of an OpenAI-compatible server → text, usage and time stamps. Pure: the caller reads and stamps.

What is unknown stays None: output tokens come from the server's `usage` alone and are never guessed from chunks or
words; absent cached tokens are not zero. Definitions of times are in `engines.timing`.
"""

from __future__ import annotations

import io
import json
from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

from vlmconsole.streams.content import Content, held
from vlmconsole.streams.sse import BLANK, Event, EventSplitter, pieces
from vlmconsole.streams.usage import Usage, read_usage
from vlmconsole.system.redaction import StreamRedactor, redact, redacted, without_keys
from vlmconsole.text.counts import many
from vlmconsole.text.sizes import size

MAX_TEXT = 4 * 1024 * 1024
"""Characters kept of an answer, reasoning among them; the rest is dropped and the result says so."""
MAX_STREAM = 512 * 1024 * 1024
"""Bytes read of one answer. A million tokens, an event each, are 300 MB."""
SMALL = 16 * 1024
"""Characters of an event whose usage object is kept as it came, and of a page that is quoted."""
NAME, MAX_NAMES = 200, 8
"""Characters kept of a model's name, and how many names."""
KEEP_ALIVE = frozenset({"ping", "keepalive", "keep-alive", "heartbeat"})
"""Events by which servers and proxies keep a line open; whatever their data is, it is no part of an answer."""
NESTED = 8
"""How deep an error object is looked into for its words."""
_WORDS = ("error", "message", "error_message", "msg", "detail", "errors")
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x78\x01": "deflate",
    b"\x78\x9c": "deflate",
    b"\x78\xda": "deflate",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
MAX_RAW_USAGE = 16
"""How many raw usage objects are kept (the last ones); some servers send one with every token."""

MAX_REFUSAL, MAX_CALLS = 2000, 1000
"""Characters kept of a refusal, and how many calls of tools are told apart."""
BLANKS = 1000
"""Blanks by which the whole text at the end may differ from its pieces: servers trim it."""
ORDINARY = frozenset({"stop", "eos", "eos_token", "end_turn"})
"""Reasons to finish that say the least: any other one that came with the answer stands."""

Kind = Literal["text", "reasoning"]
Ended = Literal["done", "cut", "error", "cancelled"]


@dataclass(frozen=True, slots=True)
class Delta:
    """A non-empty piece of an answer. at: seconds on the clock of the caller."""

    kind: Kind
    text: str
    at: float


@dataclass(slots=True)
class Stamps:
    """When things happened, seconds on one clock; None for what did not happen."""

    sent: float | None = None
    first_byte: float | None = None
    first_any: float | None = None
    first_reasoning: float | None = None
    last_reasoning: float | None = None
    first_text: float | None = None
    last_text: float | None = None
    done: float | None = None
    ended: float | None = None
    # Not in the repr: asyncio's way of taking Ctrl-C back makes one of the whole answer, for seconds.
    text_pieces: array[float] = field(default_factory=lambda: array("d"), repr=False)


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
    """The last name of a model that an event held."""
    models: list[str] = field(default_factory=list)
    """Every name that events held, in the order of their coming; more than one: several models answered."""
    refusal: str = ""
    """Why the model would not answer, where the server says so in a field of its own; its beginning."""
    tool_calls: int = 0
    """Calls of tools that came; nothing here runs them."""
    events: int = 0
    """JSON events seen; [DONE] and comments do not count."""
    unreadable: int = 0
    """Events, or pieces of them, that were no JSON object; lines that belong to no event; what was too long to keep."""
    garbled: int = 0
    """Lines with bytes that are not UTF-8: a character of the answer may be another one."""
    closed_by_us: bool = False
    """True when a limit of ours ended it: `error` says which."""
    streamed: bool = True
    """False when the server answered with one whole JSON body: then no time inside the answer is known."""

    @property
    def loss(self) -> str:
        """Why the answer may not be what the model said, in words; "" when every event was read."""
        parts = []
        if self.unreadable:
            parts.append(f"{many(self.unreadable, 'event')} of the stream unreadable")
        if self.garbled:
            parts.append(f"{many(self.garbled, 'event')} with bytes that are not UTF-8")
        return " and ".join(parts) + ("; a part of the answer may be missing" if parts else "")


class StreamParser:
    """Feed the body of one response, however it is split; then read `result`.

    sent: when the request was sent, on the clock of `feed`'s times.
    """

    def __init__(self, sent: float | None = None) -> None:
        self.result = StreamResult(stamps=Stamps(sent=sent))
        self.full = False
        """True once a limit was passed: nothing more is kept, and the connection may as well be closed."""
        self._events = EventSplitter()
        self._text, self._reasoning = io.StringIO(), io.StringIO()  # a list of a million pieces takes 60 times as much
        self._kept = self._fed = 0
        self._came: dict[Kind, io.StringIO] = {
            "text": io.StringIO(),
            "reasoning": io.StringIO(),
        }  # before keys are hidden
        self._calls: set[str] = set()
        self._apart: set[Kind] = set()
        self._half = {"text": "", "reasoning": ""}
        self._hidden = {"text": StreamRedactor(), "reasoning": StreamRedactor()}
        self._raw: deque[dict[str, Any]] = deque(maxlen=MAX_RAW_USAGE)
        self._last = 0.0
        self._finished = False
        self._answers = 0  # choices seen, with text or without

    @property
    def lines(self) -> int:
        """Lines that came so far, comments among them: a body whose lines never end does not count as going on."""
        return self._events.lines

    def feed(self, data: bytes, at: float) -> list[Delta]:
        """Return the pieces that these bytes completed. at: seconds when they were read."""
        if data and self.result.stamps.first_byte is None:
            self.result.stamps.first_byte = at
        self._last = at
        self._fed += len(data)
        if self._fed > MAX_STREAM:
            self.stop(f"more than {size(MAX_STREAM)} came for one answer; the rest was not read")
            return []
        return self._take(self._events.feed(data, at))

    def finish(self, at: float, *, cancelled: bool = False) -> list[Delta]:
        """Return the body ended (or, cancelled, we closed it); gives the pieces that were still held.

        Safe to call twice; the first call counts.
        """
        if self._finished:
            return []
        self._finished = True
        result, events = self.result, self._events
        lost = result.unreadable
        deltas = self._take(events.finish(self._last))
        if result.stamps.done is None:  # an event in whose middle the line was cut: "cut" says it already
            result.unreadable = lost
        result.unreadable += events.dropped
        result.garbled = events.garbled
        if result.events:
            result.unreadable += events.strays
        elif result.stamps.done is None:
            self._whole_body(bytes(events.stray), deltas)
        for kind, half in self._half.items():
            if half:  # the second half of a surrogate pair never came
                (self._text if kind == "text" else self._reasoning).write("�")
        self._keep("text", self._hidden["text"].finish(), self._last, deltas)
        self._keep("reasoning", self._hidden["reasoning"].finish(), self._last, deltas)
        result.text, result.reasoning = without_keys(self._text.getvalue()), without_keys(self._reasoning.getvalue())
        result.refusal = without_keys(result.refusal)
        if result.usage.completion_tokens == 0 and (result.text or result.reasoning):
            result.usage.completion_tokens = None  # words came: nobody counted them
        if result.error is not None and result.usage.zero_prompt and result.usage.prompt_tokens is None:
            result.usage.prompt_tokens = 0  # a request that was turned away was not read: there 0 is true
        result.usage.raw = list(self._raw)
        result.stamps.ended = at
        if result.stamps.done is not None and not self._answers:
            # An empty answer is an answer; a stream that never held one is a fault of the server (or of a proxy).
            lost_too = f"; {result.loss}" if result.loss else ""
            self._fail(
                f"the stream ended without an answer in it ({result.events} events, none with choices{lost_too})"
            )
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
            if self.result.stamps.done is not None or self.full:
                break  # nothing after [DONE] belongs to this answer
            self._event(event, deltas)
        return deltas

    def _event(self, event: Event, deltas: list[Delta]) -> None:
        result = self.result
        if event.name in KEEP_ALIVE or not event.data.strip(BLANK):
            return
        read = pieces(event.data)
        lost = read.lost
        for value in read.values:
            if not isinstance(value, dict):
                lost += 1
                continue
            result.events += 1
            if result.stamps.first_any is None:
                result.stamps.first_any = event.at
            if event.name == "error" or is_error(value):
                self._fail(value)
            self._body(value, event.at, deltas, small=len(event.data) < SMALL)
        if lost and event.name == "error":
            self._fail(event.data)
        else:
            result.unreadable += lost
        if read.done:
            result.stamps.done = event.at

    def _body(self, value: dict[str, Any], at: float, deltas: list[Delta], *, small: bool = True) -> None:
        result = self.result
        if isinstance(value.get("model"), str) and value["model"]:
            result.model = without_keys(value["model"])[:NAME]
            if result.model not in result.models and len(result.models) < MAX_NAMES:
                result.models.append(result.model)
        if isinstance(value.get("usage"), dict):
            if small:
                self._raw.append(redacted(value["usage"]))
            read_usage(value["usage"], result.usage)
        choices = value.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict) or choice.get("index") not in (None, 0):
                continue
            self._answers += 1
            reason = choice.get("finish_reason")
            if isinstance(reason, str) and reason.strip() and result.finish_reason in {None, *ORDINARY}:
                result.finish_reason = without_keys(reason)[:NAME]
            self._choice(choice, at, deltas)

    def _choice(self, choice: dict[str, Any], at: float, deltas: list[Delta]) -> None:
        before = {kind: came.tell() for kind, came in self._came.items()}
        for name in ("delta", "message"):
            holder = choice.get(name)
            if not isinstance(holder, dict):
                self.result.unreadable += holder is not None
                continue
            part = held(holder)
            if part.strange or part.calls or part.refusal:
                self._besides(part, whole=name == "message")
            pairs: tuple[tuple[Kind, str], ...] = (("reasoning", part.reasoning), ("text", part.text))
            for kind, text in pairs:
                if name == "delta":
                    self._piece(kind, text, at, deltas)
                else:
                    self._so_far(kind, text, before[kind], at, deltas)
        if not choice.get("delta") and not choice.get("message") and isinstance(choice.get("text"), str):
            self._piece("text", choice["text"], at, deltas)  # as of the older /v1/completions

    def _besides(self, part: Content, *, whole: bool) -> None:
        result = self.result
        result.unreadable += part.strange
        if len(self._calls) < MAX_CALLS:
            self._calls |= part.calls
        result.tool_calls = len(self._calls)
        if part.refusal and len(result.refusal) < MAX_REFUSAL:
            result.refusal = part.refusal[:MAX_REFUSAL] if whole else (result.refusal + part.refusal)[:MAX_REFUSAL]

    def _so_far(self, kind: Kind, text: str, before: int, at: float, deltas: list[Delta]) -> None:
        """Takes in the whole text so far: only what is new of it counts, and what contradicts what came is lost.

        before: characters that had come before this event, whose delta the text may leave out.
        """
        if not text or self.full:
            return
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        came = self._came[kind]
        length = came.tell()
        if kind in self._apart or len(text) < min(before, length - BLANKS):
            self._apart.add(kind)  # compared no more: a short one with every event would cost the square of the length
            self.result.unreadable += 1
            return
        came.seek(0)
        old = came.read()
        if text.startswith(old):
            self._half[kind] = ""
            self._piece(kind, text[length:], at, deltas)
        elif text != old[:before] and text.strip() != old.strip():
            self._apart.add(kind)
            self.result.unreadable += 1

    def _piece(self, kind: Kind, text: str, at: float, deltas: list[Delta]) -> None:
        if not text or self.full:
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
            stamps.last_reasoning = at
        else:
            stamps.first_text = at if stamps.first_text is None else stamps.first_text
            stamps.last_text = at
            stamps.text_pieces.append(at)
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if text else ""
        self._came[kind].write(text)
        self._keep(kind, self._hidden[kind].feed(text), at, deltas)

    def _keep(self, kind: Kind, text: str, at: float, deltas: list[Delta]) -> None:
        if self._kept + len(text) > MAX_TEXT:
            self.stop(f"the answer passed {MAX_TEXT} characters; the rest was dropped")
            return
        self._kept += len(text)
        if text:
            (self._text if kind == "text" else self._reasoning).write(text)
            deltas.append(Delta(kind, text, at))

    def _whole_body(self, body: bytes, deltas: list[Delta]) -> None:
        """A body without events: an error in JSON, a whole answer in JSON, or a page that is neither."""
        if packed := encoding_of(body):
            self._fail(f"the answer came as {packed}, which was not asked for: a proxy or the server packs it")
            return
        text = body.decode("utf-8", "replace").strip(BLANK)
        if not text:
            return
        read = pieces(text)
        objects = [value for value in read.values if isinstance(value, dict)]
        if read.lost or len(objects) < len(read.values) or not objects:
            self._fail(f"no chat stream came back, but: {text[:SMALL]}")
        elif is_error(objects[0]):
            self._fail(objects[0])
        elif isinstance(objects[0].get("choices"), list):
            # One object is a whole answer; several, one a line, are a stream in which `data:` was left out.
            self.result.streamed = False
            for value in objects:
                self._body(value, self._last, deltas)
            if len(objects) == 1 or read.done or self.result.finish_reason is not None:
                self.result.stamps.done = self._last
        else:
            self._fail(f"no chat stream came back, but: {text[:SMALL]}")

    def stop(self, why: str) -> None:
        """Take nothing more in, because of `why`; what came is kept."""
        self.full = self.result.closed_by_us = True
        self._fail(why)

    def _fail(self, what: Any) -> None:
        if self.result.error is None:
            self.result.error, self.result.error_code = error_text(what), error_code(what)


def encoding_of(body: bytes) -> str:
    """Return how a body is packed that can be read as neither text nor JSON: gzip, zstd, UTF-16…; "" for none of
    these.
    """
    known = next((name for magic, name in _MAGIC.items() if body.startswith(magic)), "")
    if known:
        return known
    start = body[:64]
    return "UTF-16" if len(start) >= 4 and start.count(0) * 3 > len(start) else ""


def is_error(value: dict[str, Any]) -> bool:
    """True for an error object: nested (`error`), flat (`object: error`, or `message` beside a code), FastAPI's
    (`detail`), a list (`errors`)."""
    if value.get("error") or value.get("object") == "error" or value.get("type") == "error":
        return True
    if "choices" in value or "usage" in value:
        return False
    flat = isinstance(value.get("message"), str) and not value.keys().isdisjoint(
        ("code", "type", "status", "status_code")
    )
    return flat or "detail" in value or bool(value.get("errors"))


def error_text(value: Any, limit: int = 300) -> str:
    """Return one line that says what the server reported, from any of the shapes in which servers do.

    Python traces and long data are cut off; at most `limit` characters, without keys that the server repeats.
    """
    for _ in range(NESTED):
        inner = _first_said(value) if isinstance(value, dict) else None
        if inner is None:
            break
        value = inner
    if isinstance(value, dict):
        value = json.dumps(value, ensure_ascii=False, default=str)
    elif isinstance(value, list):
        value = "; ".join(_item_text(item) for item in value[:3])
    line = " ".join("".join(c if c.isprintable() else " " for c in str(value)[:SMALL]).split()).split(' File "')[0]
    line = redact(line)  # before it is cut: half a key is a leak, too
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _first_said(value: dict[str, Any]) -> Any:
    return next((value[name] for name in _WORDS if value.get(name)), None)


def _item_text(item: Any) -> str:
    words = _first_said(item) if isinstance(item, dict) else None
    if not isinstance(words, str):
        return str(item)[:SMALL]
    where = ".".join(str(part) for part in item["loc"]) if isinstance(item.get("loc"), list) else ""
    return f"{where}: {words}" if where else words


def error_code(value: Any) -> int | None:
    """Return the HTTP-like code inside an error object, or None."""
    inner = value.get("error") if isinstance(value, dict) else None
    for holder in (inner, value):
        code = holder.get("code") if isinstance(holder, dict) else None
        if isinstance(code, int) and not isinstance(code, bool):
            return code
    return None
