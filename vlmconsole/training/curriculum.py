"""What is taught when: the order of the pictures, the learning rate of a step, and which tokens count.

Everything follows from (seed, epoch) or from the step alone, so that a run taken up anywhere goes on exactly.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vlmconsole.data.rows import Row
from vlmconsole.models.qwen2_5_vl import END, IMAGE
from vlmconsole.training.model import Loaded, encode
from vlmconsole.training.prompts import Turn

Schedule = Literal["cosine", "linear", "constant"]
IGNORED = -100


@dataclass(frozen=True)
class Curriculum:
    """`rows` pictures, each once an epoch; a step takes `accumulation` batches of `batch`, an epoch's last the rest."""

    rows: int
    epochs: int
    batch: int
    accumulation: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.rows // (self.batch * self.accumulation))

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    def order(self, epoch: int) -> list[int]:
        """Indices of all rows, in the order of an epoch (from 1)."""
        return random.Random(f"sft:{self.seed}:{epoch}").sample(range(self.rows), self.rows)

    def step_rows(self, step: int) -> list[list[int]]:
        """The row indices of a step (from 0): one list for each of its batches."""
        epoch, at = divmod(step, self.steps_per_epoch)
        size = self.batch * self.accumulation
        taken = self.order(epoch + 1)[at * size : (at + 1) * size]
        return [taken[i : i + self.batch] for i in range(0, len(taken), self.batch)]


def rate_at(step: int, steps: int, rate: float, warm_up: int, schedule: Schedule) -> float:
    """The learning rate of a step (from 0): `warm_up` rising steps times the schedule, which ends at 5 % of `rate`."""
    rising = min(1.0, (step + 1) / warm_up) if warm_up else 1.0
    gone = step / steps
    share = {
        "cosine": 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * gone)),
        "linear": 1 - 0.95 * gone,
        "constant": 1.0,
    }[schedule]
    return rate * rising * share


def lesson(row: Row) -> list[Turn]:
    """One row as a chat whose answer is its truth, word for word."""
    return [Turn(row.question, row.truth, (row.image(),))]


def batch_inputs(loaded: Loaded, rows: Sequence[Row]) -> dict[str, Any]:
    """The tensors of a batch (see `model.encode`), right-padded, with labels on the answers' tokens alone."""
    return encode(loaded, [lesson(row) for row in rows])


@dataclass(frozen=True)
class Masked:
    """One row's supervision: `tokens` in all, `pictures` of them visual, supervised from `start` up to `stop`."""

    uid: str
    tokens: int
    pictures: int
    start: int
    stop: int
    supervised: str
    visual: int  # visual tokens among the supervised: none, or it is a fault
    wrong: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON: one entry of `mask.json`."""
        return {
            "uid": self.uid,
            "tokens": self.tokens,
            "visual_tokens": self.pictures,
            "supervised_from": self.start,
            "supervised_to": self.stop,
            "supervised": self.supervised,
            **({"wrong": self.wrong} if self.wrong else {}),
        }


def audit_mask(loaded: Loaded, rows: Sequence[Row], stopping: Callable[[], bool]) -> Iterator[Masked]:
    """Every row's mask, taken from the very tensors that training sees, and compared with the row's truth."""
    image = loaded.tokenizer.convert_tokens_to_ids(IMAGE)
    for row in rows:
        if stopping():
            return
        inputs = batch_inputs(loaded, [row])
        ids, labels = inputs["input_ids"][0].tolist(), inputs["labels"][0].tolist()
        where = [i for i, label in enumerate(labels) if label != IGNORED]
        decoded = loaded.tokenizer.decode([labels[i] for i in where])
        start, stop = (where[0], where[-1] + 1) if where else (0, 0)
        visual = sum(ids[i] == image for i in where)
        fault = "a visual token is supervised" if visual else _fault(row, ids, labels, where, decoded)
        yield Masked(row.uid, len(ids), ids.count(image), start, stop, decoded, visual, fault)


def _fault(row: Row, ids: list[int], labels: list[int], where: list[int], decoded: str) -> str:
    if not where:
        return "no token is supervised"
    if decoded != f"{row.truth}{END}":
        return f"supervised is {decoded!r}, not the answer {row.truth!r} and its end mark"
    if where != list(range(where[0], where[-1] + 1)):
        return "the supervised tokens are not one piece"
    if any(labels[i] != ids[i] for i in where):
        return "a supervised token is not the token that stands there"
    return ""
