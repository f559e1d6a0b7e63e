"""Settings that a preset leaves to the data: proposed from a dataset's sizes and answers, with the reason of each.

A preset names them in `proposed`; what it or `--set` gives is never touched. The numbers are starting points: the steps
of a small training, a rate that the bundled model learned its tasks with or the lab's for the 3B, room for the longest
answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vlmconsole.data.example import truth_text
from vlmconsole.data.names import promised, truths_of
from vlmconsole.errors import LabError
from vlmconsole.runs.places import Places

SFT_STEPS = 300  # wanted of a small dataset
FEWEST, MOST = 3, 12  # epochs
CANDIDATES = 4  # epochs that are scored on the dev set
WARM_UP = 30  # steps, at most a tenth of all
GRPO_STEPS = 60  # at most, once through a small dataset
LEAST_TOKENS, MOST_TOKENS = 16, 1024  # of an answer
VALIDATION = 32  # dev examples answered on the way


@dataclass(frozen=True)
class Proposal:
    """A value for a setting, and why."""

    value: Any
    reason: str


@dataclass(frozen=True)
class DataFacts:
    """What proposals follow from: the examples by role, the splits of each role, bytes of the longest answer."""

    counts: Mapping[str, int]
    splits: Mapping[str, tuple[str, ...]]
    longest: int

    @property
    def train(self) -> int:
        return self.counts.get("train", 0)

    @property
    def dev(self) -> int:
        return self.counts.get("dev", 0)


def data_facts(name: str, places: Places) -> DataFacts | None:
    """Return the facts of a dataset by name, made or promised by its recipe; None where it is not there or not
    complete.
    """
    counts, splits, longest = dict[str, int](), dict[str, tuple[str, ...]](), 0
    try:
        for split, about in promised(name, places.datasets).items():
            counts[about.role] = counts.get(about.role, 0) + (about.n or 0)
            splits[about.role] = (*splits.get(about.role, ()), split)
        for _, role, truths in truths_of(name, places.datasets):
            if role in ("train", "dev"):
                longest = max(longest, max((_bytes(held.truth) for held in truths), default=0))
    except LabError:
        return None  # preflight says what is wrong with it
    return DataFacts(counts, splits, longest)


def _bytes(truth: Any) -> int:
    texts = truth if isinstance(truth, list) and all(isinstance(text, str) for text in truth) else [truth]
    return max((len(truth_text(text).encode()) for text in texts), default=0)


def propose_sft(spec: Mapping[str, Any], places: Places) -> dict[str, Proposal]:
    """Proposals for a supervised training on `spec["data"]`; none where the data are not there."""
    facts = data_facts(str(spec.get("data") or ""), places)
    if facts is None or not facts.train:
        return {}
    a_step = int(spec.get("batch") or 4) * int(spec.get("accumulation") or 1)
    per_epoch = -(-facts.train // a_step)
    epochs = spec.get("epochs")
    proposals = {
        "lr": _rate(spec, bundled=2e-3, others=2e-4),
        "max_new_tokens": _tokens(facts),
        "score_start": Proposal(True, "the dev set is scored before training too, so that a gain is seen"),
    }
    if not isinstance(epochs, int):
        epochs = max(FEWEST, min(MOST, round(SFT_STEPS / per_epoch)))
        proposals["epochs"] = Proposal(
            epochs, f"{facts.train} training examples in steps of {a_step}: {epochs * per_epoch} steps"
        )
    scored = sorted({-(-epochs * part // CANDIDATES) for part in range(1, CANDIDATES + 1)})
    proposals["dev_epochs"] = Proposal(scored, f"scored on the {facts.dev} dev examples; the best is chosen")
    warm_up = min(WARM_UP, epochs * per_epoch // 10)
    proposals["warm_up"] = Proposal(warm_up, "a tenth of the steps, at most 30")
    return proposals


def propose_grpo(spec: Mapping[str, Any], places: Places) -> dict[str, Proposal]:
    """Proposals for a GRPO training on `spec["data"]`; none where the data are not there."""
    facts = data_facts(str(spec.get("data") or ""), places)
    if facts is None or not facts.train:
        return {}
    questions = int(spec.get("questions") or 4)
    steps = min(GRPO_STEPS, -(-facts.train // questions))
    proposals = {
        "lr": _rate(spec, bundled=1e-5, others=1e-6),
        "max_new_tokens": _tokens(facts),
        "steps": Proposal(steps, f"{questions} of {facts.train} training examples a step"),
    }
    for setting, role in (("train_split", "train"), ("validation_split", "dev")):
        if names := facts.splits.get(role):
            proposals[setting] = Proposal(names[0], f"the split for {role}")
    if facts.dev:
        proposals["score_start"] = Proposal(True, "validated before and after too, so that a gain is seen")
        proposals["validation"] = Proposal(min(VALIDATION, facts.dev), f"of {facts.dev} dev examples")
        every = int(spec.get("steps") or steps)
        proposals["validate_every"] = Proposal(max(1, every // 3), "three times in the training")
    return proposals


def _rate(spec: Mapping[str, Any], *, bundled: float, others: float) -> Proposal:
    from vlmconsole.training.bases import is_bundled

    if is_bundled(str(spec.get("base") or "")):
        return Proposal(bundled, "the rate that the bundled model learned its tasks with")
    return Proposal(others, "the lab's rate for a 3B model")


def _tokens(facts: DataFacts) -> Proposal:
    """Room for the longest answer, taken as a token for every two bytes, and as much again."""
    wanted = -(-max(LEAST_TOKENS, facts.longest) // 16) * 16
    return Proposal(min(MOST_TOKENS, wanted), f"the longest answer has {facts.longest} bytes")
