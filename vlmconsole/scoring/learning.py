"""Whether a training learned something, by its own dev set, and likely causes where it did not.

Pure Python: from scores before the first step and after the chosen one, and from what the run wrote down. These are
in-training development scores: no measure of skill, which an evaluation by a frozen plan gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmconsole.scoring.bounded import paired_bounds
from vlmconsole.scoring.intervals import paired_interval
from vlmconsole.text.numbers import figure, percent, signed
from vlmconsole.text.plain import one_line

LITTLE = 0.8  # of the first loss: a training that ends above it hardly moved
BY_HEART = 0.1  # nats a token: below it the training answers are known
LEVEL = 0.85  # of the loss half-way: a training that ends above it has stopped learning
MOSTLY = 0.8  # of answers, groups, steps
_NOISE = 1e-9
SHOWN = 2  # losses at either end that are averaged: a tenth of the steps, at least so many


@dataclass(frozen=True)
class TrainingOutcome:
    """`learned`: the whole interval of the gain lies above zero. Scores from 0 to 1; `n` dev examples."""

    learned: bool
    before: float
    after: float
    low: float
    high: float
    n: int
    causes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """`learned: development 33 % → 97 % (n = 36, 95 % interval of the gain +44 to +80 points)`."""
        word = "learned" if self.learned else "did not learn"
        low, high = (signed(100 * bound, 0) for bound in (self.low, self.high))
        return (
            f"{word}: development {percent(self.before, 0)} → {percent(self.after, 0)}"
            f" (n = {self.n}, 95 % interval of the gain {low} to {high} points)"
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TrainingOutcome:
        """Return the outcome that a summary holds. Raises KeyError, TypeError and ValueError for what is none."""
        return cls(
            learned=value["learned"] is True,
            before=float(value["before"]),
            after=float(value["after"]),
            low=float(value["gain_low"]),
            high=float(value["gain_high"]),
            n=int(value["n"]),
            causes=tuple(map(str, value["causes"])),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "learned": self.learned,
            "before": self.before,
            "after": self.after,
            "gain_low": self.low,
            "gain_high": self.high,
            "n": self.n,
            "causes": list(self.causes),
        }


def training_outcome(
    before: Sequence[float],
    after: Sequence[float],
    causes: Iterable[str] = (),
    samples: Sequence[Mapping[str, Any]] = (),
) -> TrainingOutcome:
    """Return the outcome over the same dev examples in the same order; causes count only where nothing was learned.

    `samples` are the lines of the last answers: a score that always giving the commonest truth reaches too is none of
    what was to be learned, however far below it the training began.
    """
    within = all(0 <= score <= 1 for score in (*before, *after))  # a reward of one's own may go beyond
    gain = (paired_bounds if within else paired_interval)(before, after)
    first, last = (sum(side) / len(side) for side in (before, after))
    blind = _constant_answer(samples)
    reasons = [] if blind is None or last > blind[1] + _NOISE else [_no_better(*blind), *answer_causes(samples)]
    learned = gain.low > 0 and not reasons
    if gain.low <= 0:
        reasons = list(causes)
    return TrainingOutcome(learned, first, last, gain.low, gain.high, len(before), tuple(reasons))


def _constant_answer(samples: Sequence[Mapping[str, Any]]) -> tuple[str, float] | None:
    """The commonest truth and its share, where there are several; None where there is none to compare with."""
    truths = Counter(str(sample["truth"]) for sample in samples if sample.get("truth") is not None)
    if len(truths) < 2:
        return None
    truth, times = truths.most_common(1)[0]
    return truth, times / len(samples)


def _no_better(truth: str, share: float) -> str:
    return (
        f"no better than one answer: always “{one_line(truth, 40)}” scores {percent(share, 0)} here; it learned the"
        " form of an answer, not which one is right"
    )


def answer_causes(samples: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what dev answers (lines of a samples' file) tell: not in the scorer's form, cut, or always the same
    one.
    """
    n, causes = len(samples), list[str]()
    if not n:
        return causes
    invalid = [sample for sample in samples if sample.get("valid") is False]
    if len(invalid) > n / 4:
        reason = Counter(one_line(sample.get("reason") or "", 80) for sample in invalid).most_common(1)[0][0]
        example = one_line(invalid[0].get("answer") or "", 60)
        causes.append(
            f"format: {len(invalid)} of {n} answers are not in the form that the scorer reads"
            f"{': ' + reason if reason else ''} (“{example}”); say in the prompt what an answer looks like"
        )
    cut = sum(sample.get("finish") == "length" for sample in samples)
    if cut > n / 4:
        causes.append(f"length: {cut} of {n} answers were cut at max_new_tokens; raise it")
    answer, times = Counter(str(sample.get("answer")) for sample in samples).most_common(1)[0]
    truths = {str(sample.get("truth")) for sample in samples}
    if times >= MOSTLY * n and len(truths) > 1:
        causes.append(f"one answer to everything: {times} of {n} times “{one_line(answer, 40)}”")
    return causes


def sft_causes(losses: Sequence[float], rate: float, samples: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return why a supervised training may have learned nothing that its dev set shows."""
    causes = answer_causes(samples)
    if len(losses) < 2:
        return causes
    width = max(SHOWN, len(losses) // 10)
    first, last = sum(losses[:SHOWN]) / SHOWN, sum(losses[-width:]) / width
    course = f"{figure(first)} → {figure(last)}"
    if last > LITTLE * first:
        causes.append(f"rate: the training loss hardly fell ({course}); raise lr (now {rate:g}) or epochs")
    elif last < BY_HEART:
        causes.append(
            f"frozen vision: the training answers are known by heart (loss {course}), those of new images are not; what"
            " is asked may not be visible in the image tokens, which stay as they are. More examples help where it is"
        )
    elif last > LEVEL * sum(losses[len(losses) // 2 :][:width]) / width:
        causes.append(
            f"frozen vision: the training loss fell ({course}) and stayed there: the form of answers was learned,"
            " not which one is right; what is asked may not be visible in the image tokens, which stay as they are"
        )
    else:
        causes.append(f"too short: the training loss was still falling ({course}); raise epochs")
    return causes


def grpo_causes(lines: Sequence[Mapping[str, Any]], samples: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """Return why a GRPO training may have learned nothing, from its training lines."""
    causes = answer_causes(samples)
    zero = [float(line["zero_advantage"]) for line in lines if isinstance(line.get("zero_advantage"), int | float)]
    if zero and sum(zero) / len(zero) >= MOSTLY:
        causes.append(
            f"groups without advantage: {percent(sum(zero) / len(zero), 0)} of groups had answers that earned the same,"
            " so they taught nothing; raise temperature or answers, or begin with a supervised training"
        )
    gradients = [float(line["grad_norm"]) for line in lines if isinstance(line.get("grad_norm"), int | float)]
    still = sum(value == 0 for value in gradients)
    if gradients and still:
        causes.append(f"gradient 0 in {still} of {len(gradients)} steps: these changed no weight")
    rewards = [float(line["reward_mean"]) for line in lines if isinstance(line.get("reward_mean"), int | float)]
    if rewards and max(rewards) == 0:
        causes.append("reward: no sampled answer earned anything; teach the form of an answer by a supervised training")
    elif not causes:
        causes.append("rate or length: rewards differed and little moved; raise lr or steps")
    return causes
