"""What has to be said about an answer besides its words: cut by a ceiling, empty, reasoning alone, pieces lost, another
model. One reading for the chat screen, the command, exports and evaluations; each adds what can be done where it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vlmconsole.engines.stream import StreamResult
from vlmconsole.runs.words import many

Code = Literal["limit", "context", "empty", "reasoning", "ended", "lost", "model", "models", "unlisted", "whole"]
LIMITS = frozenset({"length", "max_tokens"})
USUAL = frozenset({"stop", "eos", "eos_token", "end_turn", "stop_sequence", "tool_calls", "function_call", *LIMITS})
NO_ANSWER: frozenset[str] = frozenset({"empty", "reasoning", "lost"})
"""Codes of answers that are none, or not whole: a command fails by them, a measurement and an evaluation set them aside
(an empty answer is judged there: it is what the model said)."""


@dataclass(frozen=True, slots=True)
class Remark:
    """One of them: its code, and the words."""

    code: Code
    text: str

    def to_json(self) -> dict[str, str]:
        return {"code": self.code, "text": self.text}


def remarks(
    result: StreamResult, *, max_tokens: int | None = None, asked: str = "", listed: tuple[str, ...] | None = None
) -> list[Remark]:
    """The remarks on one answer that ended, the gravest first.

    max_tokens: the ceiling that was asked for; asked: the model's name in the request; listed: the names that the
    server's /v1/models holds, None where it was not read.
    """
    made = [*_content(result, max_tokens)]
    if result.loss:
        made.insert(0, Remark("lost", result.loss))
    made += by_name(result.models, asked, listed)
    if not result.streamed and result.ended == "done":
        made.append(Remark("whole", "the answer came as one whole body, not streamed: its inner times are unknown"))
    return made


def by_name(names: Sequence[str], asked: str, listed: tuple[str, ...] | None) -> list[Remark]:
    """What the names of models in answers say against the one that was asked for; see :func:`remarks`."""
    other = [name for name in names if name != asked]
    if len(names) > 1:
        return [Remark("models", f"{len(names)} models answered under one name: {', '.join(names)}")]
    if other and asked:
        return [Remark("model", f"asked for {asked}, and {other[0]} answered")]
    if listed and asked and asked not in listed:
        shown = ", ".join(listed[:3]) + (", …" if len(listed) > 3 else "")
        return [Remark("unlisted", f"asked for {asked}, which /v1/models does not list ({shown})")]
    return []


def answered_by(names: Sequence[str], asked: str | None) -> tuple[str | None, str | None]:
    """(the model that answered, the name asked for where that is another): the two as conditions hold them."""
    return (", ".join(names), asked) if names and list(names) != [asked] else (asked, None)


def _content(result: StreamResult, max_tokens: int | None) -> list[Remark]:
    if result.ended != "done":
        return []  # the error, the cut or the stop says how it ended
    finish, limited = result.finish_reason, _limited(result, max_tokens)
    if not result.text.strip():
        if result.reasoning.strip():
            size = many(len(result.reasoning), "character")
            return [Remark("reasoning", f"only reasoning came ({size}), no answer"), *limited]
        return [Remark("empty", f"the answer is empty (finish {finish or 'not reported'})"), *limited]
    if finish is not None and finish not in USUAL:
        return [Remark("ended", f"the server ended the answer: {finish}")]
    return limited


def _limited(result: StreamResult, max_tokens: int | None) -> list[Remark]:
    if result.finish_reason not in LIMITS:
        return []
    tokens = result.usage.completion_tokens
    if tokens is not None and max_tokens is not None and tokens < max_tokens:
        size = f"{many(tokens, 'token')} ({max_tokens} allowed)"
        return [Remark("context", f"cut by the server after {size}: its context may be full")]
    return [Remark("limit", f"hit the {max_tokens}-token limit" if max_tokens else "hit the token limit")]


def read_remarks(facts: Mapping[str, Any]) -> list[Remark]:
    """The remarks stored with an answer; of one that an earlier version stored, those that its facts still tell."""
    stored = facts.get("remarks")
    if isinstance(stored, list):
        return [Remark(one["code"], one["text"]) for one in stored if {"code", "text"} <= one.keys()]
    result = StreamResult(
        text=str(facts.get("text") or ""),
        reasoning=str(facts.get("reasoning") or ""),
        finish_reason=facts.get("finish_reason"),
        ended=facts.get("ended") or "cut",
    )
    tokens = (facts.get("usage") or {}).get("completion_tokens")
    result.usage.completion_tokens = tokens if isinstance(tokens, int) else None
    limit = (facts.get("conditions") or {}).get("max_tokens")
    return remarks(result, max_tokens=limit if isinstance(limit, int) else None)
