"""What answers: a model in this process or behind a server, with what is known of it before it is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from vlmconsole.evaluation.items import Item
from vlmconsole.evaluation.settings import SideName
from vlmconsole.ledger.freezing import digest
from vlmconsole.runs.conditions import Conditions


class Stopping(Exception):
    """It was asked to stop; what was answered is kept."""


@dataclass(frozen=True)
class ModelAnswer:
    """One answer as it came. `answer` is None when the request failed, and `error` says why; times in seconds.

    `token_ids` and `tensor_sha256` are None where a server keeps them to itself.
    """

    answer: str | None
    token_ids: list[int] | None = None
    tensor_sha256: str | None = None
    finish: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    seconds: float | None = None
    sight: str | None = None  # proof of sight: whether the server saw as many visual tokens as expected
    error: str = ""
    remarks: tuple[str, ...] = ()  # codes of `engines.ending`: cut by the ceiling, empty, reasoning alone…
    others: tuple[str, ...] = ()  # names of models in the answer, where they are not the one that was asked for

    @property
    def http_ok(self) -> bool:
        """Whether the request came to its end, which says nothing of the answer being right."""
        return self.answer is not None


@dataclass(frozen=True)
class Who:
    """The model under test: names for people, and the hashes (hex) of its weights; None where a server hides them."""

    model: str
    model_sha256: str | None = None
    adapter: str | None = None
    adapter_sha256: str | None = None
    label: str = ""  # "another model, needs its own evaluation" where an adapter is not on its own base

    @property
    def identity(self) -> str | None:
        """The adapter as conditions and bound plans name it: name and hash of its weights."""
        if self.adapter is None:
            return None
        return f"{self.adapter} sha256:{self.adapter_sha256}" if self.adapter_sha256 else self.adapter

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "model": self.model,
            "model_sha256": self.model_sha256,
            "adapter": self.adapter,
            "adapter_sha256": self.adapter_sha256,
            **({"label": self.label} if self.label else {}),
        }


class Answerer(Protocol):
    """One side of an evaluation. `facts` are all that its answers depend on besides what is asked."""

    who: Who
    facts: dict[str, Any]

    def ask(self, items: Sequence[Item]) -> list[ModelAnswer]:
        """Return the answers to one batch, in its order. Raises Stopping where a stop is asked for meanwhile."""

    def conditions(self) -> Conditions:
        """Return what its answers are made under; the lengths and the number of answers are filled in by the caller."""


Opener = Callable[[SideName], AbstractContextManager[Answerer]]


def condition_hash(facts: dict[str, Any], asked: str) -> str:
    """Hash (hex) under which answers may be mixed: host, device, versions, weights, settings, and what is asked."""
    return digest({**facts, "asked": asked})
