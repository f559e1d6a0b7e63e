"""Choosing the epoch: a rule that is frozen before the first step, applied to development samples only.

Pure Python, so that an audit can recompute the choice without torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FILE = "selection.json"
METRIC, TIE = "mean reward", "the earlier epoch"
NOT_A_BASELINE = "in-training development: it chooses an epoch and is not a baseline"


def development_file(epoch: int) -> str:
    """Return the run's file of development samples after an epoch."""
    return f"dev-epoch{epoch}.jsonl"


@dataclass(frozen=True)
class SelectionRule:
    """What is frozen: which epochs compete, on which development examples, by which metric of which scorers.

    `dataset_sha256` is the manifest's digest, `uids` the development rows in order, `max_new_tokens` the ceiling of
    an answer. `scorers` are the identities of those that give the rewards, `scoring_sha256` each example's with its
    options; () and "" in rules of earlier versions. The test splits play no part.
    """

    dataset: str
    dataset_sha256: str
    split: str
    uids: tuple[str, ...]
    epochs: tuple[int, ...]
    max_new_tokens: int
    metric: str = METRIC
    tie: str = TIE
    scorers: tuple[str, ...] = ()
    scoring_sha256: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, the shape of `selection.json`."""
        return {
            "rule": f"the highest {self.metric} over the split {self.split}; a tie goes to {self.tie}",
            "metric": self.metric,
            "tie": self.tie,
            "epochs": list(self.epochs),
            "dataset": self.dataset,
            "dataset_sha256": self.dataset_sha256,
            "split": self.split,
            "uids": list(self.uids),
            "n": len(self.uids),
            "max_new_tokens": self.max_new_tokens,
            "greedy": True,
            "label": NOT_A_BASELINE,
            **({"scorers": list(self.scorers), "scoring_sha256": self.scoring_sha256} if self.scorers else {}),
        }


@dataclass(frozen=True)
class Choice:
    """The chosen epoch, and the mean reward (0 to 1) of every candidate."""

    epoch: int
    means: dict[int, float]

    @property
    def tied(self) -> tuple[int, ...]:
        """Every epoch with the best mean, the chosen one first."""
        return tuple(epoch for epoch in sorted(self.means) if self.means[epoch] == self.means[self.epoch])


def choose(rewards: Mapping[int, Sequence[float]]) -> Choice:
    """Return the epoch with the highest mean reward; of equal ones the earlier. Raises ValueError when there is none.

    Sums, not means, are compared: rewards are halves, so that sums are exact and a tie is a tie.
    """
    sizes = {len(values) for values in rewards.values()}
    if len(sizes) != 1 or sizes == {0}:
        raise ValueError("every epoch needs the same, non-empty development samples")
    best = max(sorted(rewards), key=lambda epoch: sum(rewards[epoch]))  # max keeps the first of equals
    return Choice(best, {epoch: sum(values) / len(values) for epoch, values in sorted(rewards.items())})
