"""A lab home with a small dataset, and evaluations over it by an answerer whose words are chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import judged

from vlmconsole.evaluation.answerer import ModelAnswer, Who
from vlmconsole.evaluation.blind import blinded
from vlmconsole.evaluation.items import choose
from vlmconsole.evaluation.resume import Earlier
from vlmconsole.evaluation.run import Evaluation
from vlmconsole.evaluation.settings import EvaluateSettings
from vlmconsole.gates.binding import bind, freeze_for_run
from vlmconsole.ledger.chain import Ledger
from vlmconsole.runs.conditions import Conditions
from vlmconsole.runs.folder import RunFolder


class KilledError(BaseException):
    """The process is gone: nothing after it runs."""


@dataclass
class Scripted:
    """An answerer with chosen words. `wrong` ids get a wrong answer, `fails` ids a failed request.

    `pixels` (by id): the images it knows; another one in their place gets a wrong answer.
    """

    side: str
    facts: dict[str, Any]
    asked: list[tuple[str, str]]  # (side, id) over every attempt
    settings: dict[str, Any] = field(default_factory=dict)
    wrong: frozenset[str] = frozenset()
    fails: frozenset[str] = frozenset()
    pixels: dict[str, str] = field(default_factory=dict)
    die_after: int | None = None  # answers, over every attempt
    who: Who = field(default_factory=lambda: Who("scripted"))

    def ask(self, items: Sequence[Any]) -> list[ModelAnswer]:
        out = []
        for item in items:
            if self.die_after is not None and len(self.asked) >= self.die_after:
                raise KilledError
            self.asked.append((self.side, item.id))
            truth = item.truth if isinstance(item.truth, str) else item.truth[0]
            off = item.id in self.wrong or self.pixels.get(item.id, item.pixel_sha256) != item.pixel_sha256
            answer = None if item.id in self.fails else "no" if off else truth
            error = "the server said 503" if answer is None else ""
            ids = None if answer is None else list(answer.encode())
            out.append(ModelAnswer(answer, ids, item.pixel_sha256, "stop", 80, 9, 0.01, error=error))
        return out

    def conditions(self) -> Conditions:
        adapter = "sft" if self.side == "after" else None
        weights = {"model": self.who.model, "model_sha256": self.who.model_sha256}
        settings = self.settings or None
        return Conditions(
            engine="scripted", temperature=0.0, max_tokens=64, adapter=adapter, settings=settings, **weights
        )


@dataclass
class Bench:
    """A lab home with the small dataset, and evaluations over it."""

    home: Path
    asked: list[tuple[str, str]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dataset = judged.small_dataset(self.home)
        self.ledger = Ledger(self.home / "ledger.jsonl")

    def attempt(self, earlier: RunFolder | None = None, plan: bool = True, **changes: Any) -> tuple[RunFolder, Any]:
        """A new attempt: the run folder and a function that answers it."""
        more: dict[str, Any] = {} if earlier is None else {"earlier": str(earlier.path)}
        run = RunFolder.create(
            self.home / "runs", kind="evaluate", preset="small", spec={}, title="t", home=self.home, **more
        )
        settings = EvaluateSettings(data=["small"], batch=changes.pop("batch", 4), paired=changes.pop("paired", True))
        frozen = bind(judged.plan(**changes.pop("planned", {})), [self.dataset]) if plan else None
        if frozen is not None:
            freeze_for_run(frozen, run, self.home, self.ledger)
        items = choose(settings, [self.dataset], frozen)
        blind = changes.pop("blind", None)
        if changes.pop("looking", False):
            changes["pixels"] = {item.id: item.pixel_sha256 for item in items}
        facts = changes.pop("facts", {"backend": "in-process", "versions": {"torch": "1"}})
        per_side: Callable[[str], dict[str, Any]] = changes.pop("per_side", lambda side: {})

        @contextmanager
        def opener(side: str) -> Iterator[Scripted]:
            yield Scripted(side, **{"facts": facts, "asked": self.asked, **changes, **per_side(side)})

        going_on = Earlier(earlier) if earlier is not None else None
        unseen = blinded(items, blind, settings.seed) if blind else []
        return run, Evaluation(
            run, settings, items, opener, earlier=going_on, say=self.told.append, blind=unseen, blind_how=blind or ""
        )
