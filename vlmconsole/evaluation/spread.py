"""The spread between trainings: one evaluation for each training seed, over the same pictures, under like conditions.

An interval over pictures says nothing of other trainings; this says a little: the values themselves, their mean and
range. It is exploratory: no frozen plan judges by it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.gates.evidence import CONDITIONS, PLAN, unlike
from vlmconsole.gates.measures import exact, paired
from vlmconsole.gates.samples import Sample, read_side
from vlmconsole.gates.trained import training_of
from vlmconsole.ledger.chain import sha256_file
from vlmconsole.ledger.freezing import digest
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places


@dataclass(frozen=True)
class Spread:
    """One group: of each run, in order, the shares all-correct and partial (0 to 1) and the difference's interval."""

    group: str
    n: int
    all_correct: tuple[float, ...]
    partial: tuple[float, ...]
    intervals: tuple[tuple[float, float, float], ...]  # difference of partial, low, high: over pictures

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; the deviation is the sample's (n − 1)."""
        return {
            "group": self.group,
            "n": self.n,
            "all_correct": list(self.all_correct),
            "all_correct_mean": statistics.fmean(self.all_correct),
            "all_correct_range": [min(self.all_correct), max(self.all_correct)],
            "all_correct_deviation": statistics.stdev(self.all_correct),
            "partial": list(self.partial),
            "partial_deviation": statistics.stdev(self.partial),
            "intervals": [list(interval) for interval in self.intervals],
        }

    def sentence(self) -> str:
        """For people: the range between trainings, and each interval over pictures beside it."""
        shares = ", ".join(f"{100 * share:.1f}" for share in self.all_correct)
        low, high = 100 * min(self.all_correct), 100 * max(self.all_correct)
        gains = "; ".join(f"{d:+.3f} [{a:+.3f}, {b:+.3f}]" for d, a, b in self.intervals)
        text = f"{self.group}: {low:.1f}–{high:.1f} % all-correct between {len(self.partial)} trainings ({shares})"
        return f"{text}, n = {self.n} images each; partial gains over images {gains}"


def spread(runs: Sequence[RunFolder]) -> list[Spread]:
    """Return the spread of `after` over the evaluations of several trainings, group by group.

    Raises LabError for fewer than two runs, other pictures, a failed request, another before, or unlike conditions.
    """
    if len(runs) < 2:
        raise LabError("A spread needs the evaluations of at least two trainings.", code="runs-few")
    sides = [(_side(run, "before"), _side(run, "after")) for run in runs]
    stated = [run.read_json(CONDITIONS) or {} for run in runs]
    tested = [after.get("after", {}).get("adapter") or after.get("after", {}).get("model_sha256") for after in stated]
    if len(set(tested)) < len(tested):
        raise LabError("Two of these runs test the same adapter: that is no other training.", code="adapter-twice")
    for run, (before, after), conditions in zip(runs[1:], sides[1:], stated[1:], strict=True):
        if _asked(before) != _asked(sides[0][0]) or _asked(after) != _asked(sides[0][1]):
            raise LabError(f"{run.name} asked about other images than {runs[0].name}.")
        wrong = unlike(stated[0].get("after", {}), conditions.get("after", {}))
        for key, what in (("adapter", "adapters"), ("model_sha256", "base weights")):
            if stated[0].get("before", {}).get(key) != conditions.get("before", {}).get(key):
                wrong.append(f"they start from different {what}")
        if wrong:
            raise LabError(f"{run.name} is not like {runs[0].name}: {'; '.join(wrong[:3])}.")
    groups = list(dict.fromkeys(sample.group for sample in sides[0][1].values()))
    return [_group(group, sides) for group in groups]


def by_seed(runs: Sequence[RunFolder], places: Places) -> list[list[RunFolder]]:
    """Return those evaluations, two or more together, whose trainings were asked for the same but for the seed."""
    by_plan: dict[str, dict[Any, RunFolder]] = {}
    for run in runs:
        trained = training_of(run, places)
        if trained is None or not run.file(PLAN).is_file():
            continue
        job = trained.job()
        spec = job.get("spec")
        asked = {key: value for key, value in (spec if isinstance(spec, dict) else {}).items() if key != "seed"}
        key = digest([job.get("kind"), asked, sha256_file(run.file(PLAN))])
        by_plan.setdefault(key, {}).setdefault(spec.get("seed") if isinstance(spec, dict) else None, run)
    return [list(group.values()) for group in by_plan.values() if len(group) > 1]


def _group(group: str, sides: list[tuple[dict[str, Sample], dict[str, Sample]]]) -> Spread:
    ids = sorted(i for i, sample in sides[0][1].items() if sample.group == group)
    measured = [paired([before[i] for i in ids], [after[i] for i in ids]) for before, after in sides]
    return Spread(
        group=group,
        n=len(ids),
        all_correct=tuple(float(measures.all_correct[1]) for measures in measured),
        partial=tuple(float(sum(exact(after[i].partial) for i in ids) / len(ids)) for _, after in sides),
        intervals=tuple(
            (measures.interval.difference, measures.interval.low, measures.interval.high) for measures in measured
        ),
    )


def _side(run: RunFolder, name: str) -> dict[str, Sample]:
    side = read_side(run.file(f"{name}.jsonl"))
    failed = [sample.id for sample in side.samples.values() if not sample.http_ok or sample.answer is None]
    if side.problems or failed:
        why = side.problems[0] if side.problems else f"{len(failed)} requests of {name} failed"
        raise LabError(f"{run.name} is not whole: {why}.", code="answers-missing")
    return side.samples


def _asked(samples: dict[str, Sample]) -> set[tuple[str, str, str]]:
    return {(sample.id, sample.picture_sha256, sample.prompt_sha) for sample in samples.values()}
