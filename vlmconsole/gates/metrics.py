"""Gate metrics: each is one class with its name in plans, limit, unit, value, deciding pictures and display.

A new one is a subclass of `Metric` under `@register`. Plans, verdicts, lists, screens and reports ask the class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal, TypeVar

from vlmconsole.gates.measures import BlindComparison, Measures
from vlmconsole.gates.samples import Case
from vlmconsole.runs.titles import TITLES
from vlmconsole.scoring.intervals import Interval
from vlmconsole.text.counts import many
from vlmconsole.text.numbers import signed

Limit = Literal["at_least", "at_most", "above"]  # the first two inclusive
Unit = Literal["share", "points"]
Base = Literal["all_correct", "partial", "valid", "blind"]

_NOISE = 1e-9


@dataclass(frozen=True)
class MetricForm:
    """How a metric's numbers are written: the value is in `unit`, and shown `times` that with so many digits."""

    unit: Unit
    times: int
    digits: int
    ending: str = ""


PERCENT = MetricForm("share", 100, 1, " %")
SHARE = MetricForm("share", 1, 4)
POINTS = MetricForm("points", 1, 2, " points")  # hundredths of a share


class Metric(ABC):
    """What a gate compares with its limit, of one group's measures."""

    name: ClassVar[str]  # in plans, verdicts and JSON
    title: ClassVar[str]
    short: ClassVar[str] = ""  # 14 cells for a table's column; "": the title
    limit: ClassVar[Limit] = "at_least"  # the key by which a gate sets its limit
    form: ClassVar[MetricForm] = SHARE
    of_partial: ClassVar[bool] = False  # whether an interval of the score's difference may stand beside it
    base: ClassVar[Base | None] = None  # the share it starts from, where counts of answers decide it: for its power
    of_interval: ClassVar[bool] = False  # whether the value is an end of an interval
    blind: ClassVar[bool] = False  # whether it needs the blind answers

    @abstractmethod
    def sides(self, measures: Measures) -> tuple[Fraction, Fraction]:
        """Before and after of the share (0 to 1) that it is about."""

    def value(self, measures: Measures) -> Fraction:
        """Return what is compared with the limit, in its unit: after's share where nothing else is said."""
        return self.sides(measures)[1]

    def interval(self, measures: Measures) -> Interval:
        """Return the interval shown beside it: of the score's difference, after − before."""
        return measures.interval

    def remarks(self, measures: Measures) -> tuple[str, ...]:
        """Return what a reader must know beside a verdict by it; a sentence each."""
        return ()

    def deciding(self, case: Case) -> tuple[float, ...]:
        """Sort key that puts the pictures that decide first: lost, wrong, won, right; the lowest reward first."""
        return (case.rank, case.after.partial)

    def step(self, n: int) -> Fraction:
        """Return how far one of `n` pictures more or less right moves the value."""
        return Fraction(100 if self.form.unit == "points" else 1, n)

    def limit_text(self, limit: float) -> str:
        """`80 %`, `5 points`, `0`."""
        return f"{limit * self.form.times:g}{self.form.ending}"

    def side_text(self, share: float) -> str:
        """Return a side's share: `81.2 %`, or `0.8125`."""
        form = SHARE if self.form.unit == "points" else self.form
        return f"{share * form.times:.{form.digits}f}{form.ending}"

    def value_text(self, value: float) -> str:
        """`81.2 %`, `0.8125`, `−1.25`."""
        return f"{value:.2f}".replace("-", "−") if self.form.unit == "points" else self.side_text(value)

    def margin_text(self, margin: float) -> str:
        """`+1.2`: with its sign, in the value's unit as shown."""
        return signed(margin * self.form.times, self.form.digits)


METRICS: dict[str, Metric] = {}
M = TypeVar("M", bound=type[Metric])


def register(kind: M) -> M:
    """Make a metric known to plans by its name."""
    METRICS[kind.name] = kind()
    return kind


@register
class AllCorrect(Metric):
    """Share of answers that are fully right, after."""

    name = "all_correct"
    title = TITLES["all_correct"]
    form = PERCENT
    base = "all_correct"

    def sides(self, measures: Measures) -> tuple[Fraction, Fraction]:
        return measures.all_correct


@register
class PartialReward(Metric):
    """Mean partial reward, after."""

    name = "partial"
    title = TITLES["partial"]
    of_partial = True
    base: ClassVar[Base | None] = "partial"

    def sides(self, measures: Measures) -> tuple[Fraction, Fraction]:
        return measures.partial


class _Difference(PartialReward):
    """Of the partial reward between the sides: the largest losses decide, then the largest gains."""

    def deciding(self, case: Case) -> tuple[float, ...]:
        return (0 if case.gain < 0 else 1 if case.gain > 0 else 2, -abs(case.gain), case.rank)


@register
class PartialDrop(_Difference):
    """How far the mean partial reward fell, in points of a hundred."""

    name = "partial_drop"
    title = "drop of partial reward"
    short = "partial drop"
    limit = "at_most"
    form = POINTS

    def value(self, measures: Measures) -> Fraction:
        before, after = measures.partial
        return (before - after) * 100


@register
class PartialGain(_Difference):
    """Lower bound of the interval of the gain in mean partial reward, paired over images."""

    name = "partial_gain_ci_low"
    title = "gain of partial reward, lower bound"
    short = "gain, low end"
    limit = "above"
    of_interval = True

    def value(self, measures: Measures) -> Fraction:
        return _bound(measures.interval.low)

    def remarks(self, measures: Measures) -> tuple[str, ...]:
        return (f"the interval rests on {many(measures.n, 'image')}",)


@register
class MeanScore(PartialReward):
    """Mean score of any scorer, after."""

    name = "score"
    title = TITLES["score"]


@register
class ScoreDrop(PartialDrop):
    """How far the mean score fell, in points of a hundred."""

    name = "score_drop"
    title = "drop of score"
    short = ""


@register
class ScoreGain(PartialGain):
    """Lower bound of the interval of the gain in mean score, paired over examples."""

    name = "score_gain_ci_low"
    title = "gain of score, lower bound"


@register
class ValidShare(Metric):
    """Share of answers in the task's form, after."""

    name = "valid"
    title = "valid answers"
    form = PERCENT
    base = "valid"

    def sides(self, measures: Measures) -> tuple[Fraction, Fraction]:
        before, after = measures.valid
        return Fraction(before, measures.n), Fraction(after, measures.n)

    def deciding(self, case: Case) -> tuple[float, ...]:
        return (float(case.after.valid), -float(case.before.valid), *super().deciding(case))


@register
class SightGain(_Difference):
    """How much of after's mean score comes from the images: its score less the blind one, as a share."""

    name = "sight_gain"
    title = TITLES["sight_gain"]
    base = "blind"
    blind = True

    def sides(self, measures: Measures) -> tuple[Fraction, Fraction]:
        return _sight(measures).score, measures.partial[1]

    def value(self, measures: Measures) -> Fraction:
        blind, seen = self.sides(measures)
        return seen - blind

    def value_text(self, value: float) -> str:
        return signed(value)

    def interval(self, measures: Measures) -> Interval:
        return _sight(measures).interval

    def remarks(self, measures: Measures) -> tuple[str, ...]:
        return ("before is the tested model without the images",)


@register
class SightGainLow(SightGain):
    """Lower bound of the interval of the sight gain."""

    name = "sight_gain_ci_low"
    title = "sight gain, lower bound"
    short = "sight, low end"
    limit = "above"
    of_interval = True

    def value(self, measures: Measures) -> Fraction:
        return _bound(_sight(measures).interval.low)


def _bound(low: float) -> Fraction:
    """A bound is a difference of binary means: one that should be 0 can come out as 1e-17, and is no gain."""
    return Fraction(low) if abs(low) > _NOISE else Fraction(0)


def _sight(measures: Measures) -> BlindComparison:
    """The blind answers' figures; a gate on them is not judged without (`gates.verdict`)."""
    if measures.sight is None:
        raise ValueError("no blind answers")
    return measures.sight
