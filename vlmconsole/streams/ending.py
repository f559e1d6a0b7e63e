"""What has to be said about an answer besides its words: cut by a ceiling, empty, reasoning alone, pieces lost, another
model. One reading for the chat screen, the command, exports and evaluations; each adds what can be done where it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vlmconsole.streams.stream import StreamResult
from vlmconsole.text.counts import many
from vlmconsole.text.plain import one_line

Code = Literal[
    "limit", "context", "empty", "reasoning", "refused", "called", "tools", "ended", "lost", "model", "models",
    "unlisted", "whole",
]  # fmt: skip
LIMITS = frozenset({"length", "max_tokens"})
USUAL = frozenset({"stop", "eos", "eos_token", "end_turn", "stop_sequence", "tool_calls", "function_call", *LIMITS})
NO_ANSWER: frozenset[str] = frozenset({"empty", "reasoning", "refused", "called", "lost"})
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
    """Return the remarks on one answer that ended, the gravest first.

    max_tokens: the ceiling that was asked for; asked: the model's name in the request; listed: the names that the
    server's /v1/models holds, None where it was not read.
    """
    made = [*_content(result, max_tokens)]
    if result.loss:
        made.insert(0, Remark("lost", result.loss))
    made += by_name(result.models, asked, listed)
    if not result.streamed and result.ended == "done":
        made.append(Remark("whole", "not streamed: TTFT and time per token are unknown"))
    return made


def by_name(names: Sequence[str], asked: str, listed: tuple[str, ...] | None) -> list[Remark]:
    """Return what the names of models in answers say against the one that was asked for; see :func:`remarks`."""
    shown_names = [one_line(name) for name in names]
    other = [name for name in names if name != asked]
    if len(names) > 1:
        return [Remark("models", f"{len(names)} models answered: {', '.join(shown_names)}")]
    if other and asked:
        return [Remark("model", f"{one_line(other[0])} answered instead of {one_line(asked)}")]
    if listed and asked and asked not in listed:
        shown = ", ".join(map(one_line, listed[:3])) + (", …" if len(listed) > 3 else "")
        return [Remark("unlisted", f"{one_line(asked)} is not listed by /v1/models ({shown})")]
    return []


def answered_by(names: Sequence[str], asked: str | None) -> tuple[str | None, str | None]:
    """(the model that answered, the name asked for where that is another): the two as conditions hold them."""
    return (", ".join(names), asked) if names and list(names) != [asked] else (asked, None)


def _content(result: StreamResult, max_tokens: int | None) -> list[Remark]:
    if result.ended != "done":
        return []  # the error, the cut or the stop says how it ended
    finish, limited = one_line(result.finish_reason or ""), _limited(result, max_tokens)
    refused = (
        [Remark("refused", f"the model refused: {one_line(result.refusal, 400)}")] if result.refusal.strip() else []
    )
    calls = many(result.tool_calls, "tool call") if result.tool_calls else ""
    if not result.text.strip():
        besides = list(refused)
        if calls:
            besides.append(Remark("called", f"no answer, only {calls} (tools are not run here)"))
        if not besides and result.reasoning.strip():
            size = many(len(result.reasoning), "character")
            besides.append(Remark("reasoning", f"no answer, only reasoning ({size})"))
        if not besides and not result.loss:
            besides.append(Remark("empty", f"empty answer (finish {finish or 'not reported'})"))
        return [*besides, *limited]
    if calls:
        refused.append(Remark("tools", f"{calls} with the answer (tools are not run here)"))
    if finish and finish not in USUAL:
        return [*refused, Remark("ended", f"ended by the server: {finish}")]
    return [*refused, *limited]


def _limited(result: StreamResult, max_tokens: int | None) -> list[Remark]:
    if result.finish_reason not in LIMITS:
        return []
    tokens = result.usage.completion_tokens
    if tokens is not None and max_tokens is not None and tokens < max_tokens:
        size = f"{many(tokens, 'token')} ({max_tokens} allowed)"
        return [Remark("context", f"cut by the server after {size}: its context may be full")]
    return [Remark("limit", f"hit the {max_tokens}-token limit" if max_tokens else "hit the token limit")]


def read_remarks(facts: Mapping[str, Any]) -> list[Remark]:
    """Return the remarks stored with an answer; of one that an earlier version stored, those that its facts still
    tell.
    """
    stored = facts.get("remarks")
    if isinstance(stored, list):
        return [Remark(remark["code"], remark["text"]) for remark in stored if {"code", "text"} <= remark.keys()]
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
