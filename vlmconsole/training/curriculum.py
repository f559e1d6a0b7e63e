"""What is taught when: the order of the pictures, the learning rate of a step, and which tokens count.

Everything follows from (seed, epoch) or from the step alone, so that a run taken up anywhere goes on exactly.
"""

from __future__ import annotations

import math
import random
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from vlmconsole.data.example import Example
from vlmconsole.models.qwen2_5_vl import END, IMAGE
from vlmconsole.training.model import Loaded, encode
from vlmconsole.training.prompts import Turn, turns_of

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
        """Return the row indices of a step (from 0): one list for each of its batches."""
        epoch, at = divmod(step, self.steps_per_epoch)
        size = self.batch * self.accumulation
        taken = self.order(epoch + 1)[at * size : (at + 1) * size]
        return [taken[i : i + self.batch] for i in range(0, len(taken), self.batch)]


def rate_at(step: int, steps: int, rate: float, warm_up: int, schedule: Schedule) -> float:
    """Return the learning rate of a step (from 0): `warm_up` rising steps times the schedule, which ends at 5 % of
    `rate`.
    """
    rising = min(1.0, (step + 1) / warm_up) if warm_up else 1.0
    gone = step / steps
    share = {
        "cosine": 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * gone)),
        "linear": 1 - 0.95 * gone,
        "constant": 1.0,
    }[schedule]
    return rate * rising * share


def lesson(example: Example) -> list[Turn]:
    """Return one example as a chat with each of its answers. Raises DataError."""
    return turns_of(example, [picture.image() for picture in example.pictures()], answered=True)


def batch_inputs(loaded: Loaded, examples: Sequence[Example]) -> dict[str, Any]:
    """Return the tensors of a batch (see `model.encode`), right-padded, with labels on the answers' tokens alone."""
    return encode(loaded, [lesson(example) for example in examples], system=[example.system for example in examples])


@dataclass(frozen=True)
class Masked:
    """One example's supervision: `tokens` in all, `images` of them visual, image by image; `spans` are the supervised
    ones, each from its first up to the one behind its last.
    """

    uid: str
    tokens: int
    images: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    supervised: str
    visual: int  # visual tokens among the supervised: none, or it is a fault
    wrong: str = ""

    @property
    def count(self) -> int:
        """How many tokens are supervised."""
        return sum(stop - start for start, stop in self.spans)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON: one entry of `mask.json`; `visual_each` and `spans` where there are several."""
        return {
            "uid": self.uid,
            "tokens": self.tokens,
            "visual_tokens": sum(self.images),
            **({"visual_each": list(self.images)} if len(self.images) > 1 else {}),
            "supervised_from": self.spans[0][0] if self.spans else 0,
            "supervised_to": self.spans[-1][1] if self.spans else 0,
            "supervised": self.supervised,
            **({"spans": [list(span) for span in self.spans]} if len(self.spans) > 1 else {}),
            **({"wrong": self.wrong} if self.wrong else {}),
        }


def audit_mask(loaded: Loaded, examples: Sequence[Example], stopping: Callable[[], bool]) -> Iterator[Masked]:
    """Yield every example's mask, taken from the very tensors that training sees, and compared with its answers."""
    image = loaded.tokenizer.convert_tokens_to_ids(IMAGE)
    for example in examples:
        if stopping():
            return
        inputs = batch_inputs(loaded, [example])
        ids, labels = inputs["input_ids"][0].tolist(), inputs["labels"][0].tolist()
        where = [i for i, label in enumerate(labels) if label != IGNORED]
        spans = _runs(where)
        texts = [loaded.tokenizer.decode(labels[start:stop]) for start, stop in spans]
        visual = sum(ids[i] == image for i in where)
        fault = "a visual token is supervised" if visual else _fault(example, texts)
        if not fault and any(labels[i] != ids[i] for i in where):
            fault = "a supervised token is not the token that stands there"
        images = tuple(stop - start for start, stop in _runs([i for i, token in enumerate(ids) if token == image]))
        yield Masked(example.id, len(ids), images, spans, "".join(texts), visual, fault)


def _runs(where: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Rising places as runs: the first of each, and the one behind its last."""
    runs = [[i for _, i in run] for _, run in groupby(enumerate(where), lambda at: at[1] - at[0])]
    return tuple((run[0], run[-1] + 1) for run in runs)


def _fault(example: Example, taught: list[str]) -> str:
    answers = [turn.text for turn in example.turns if turn.role == "assistant"]
    if not taught:
        return "no token is supervised"
    if len(taught) != len(answers):
        return f"the supervised tokens are {len(taught)} pieces, not {len(answers)}"
    for decoded, answer in zip(taught, answers, strict=True):
        # Tokenizers write letters with their accents in one; a file's name may have them apart.
        if unicodedata.normalize("NFC", decoded) != unicodedata.normalize("NFC", f"{answer}{END}"):
            return f"supervised is {decoded!r}, not the answer {answer!r} and its end mark"
    return ""
