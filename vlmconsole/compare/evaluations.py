"""Two finished evaluations paired example by example, where they asked the same and scored alike, else refused by name.

The model under test is what may differ; engine, precision and hardware may too, and are said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vlmconsole.compare.runs import COMPARED, ComparedFigure, Comparison, Difference, shown
from vlmconsole.errors import LabError
from vlmconsole.gates.evidence import CONDITIONS
from vlmconsole.gates.measures import Measures, paired
from vlmconsole.gates.samples import Sample, read_side
from vlmconsole.ledger.freezing import digest
from vlmconsole.runs.conditions import prompt_of, same_prompt
from vlmconsole.runs.folder import FINAL, RunFolder
from vlmconsole.scoring.bounded import paired_difference
from vlmconsole.text.counts import many
from vlmconsole.text.numbers import signed

SIDES = ("after", "before", "blind")
DECODING = ("temperature", "top_p", "seed", "max_tokens")
#: what may differ without a refusal, and is said: it may move a few answers, and is no other question
SAID = ("engine", "engine_version", "precision", "hardware")
INTERVAL_MEANS = "Intervals of the paired difference b − a over examples; they say nothing of another training."
ALL = "all"


@dataclass(frozen=True)
class EvaluatedSide:
    """One side of a finished evaluation: its samples by id, what they were scored by, and under which conditions."""

    name: str
    samples: dict[str, Sample]
    scorers: dict[str, str]  # by example: scorer with version, and its options
    conditions: dict[str, Any]
    invalid: str = ""

    @property
    def answered(self) -> set[str]:
        """The ids whose request came through."""
        return {i for i, sample in self.samples.items() if sample.http_ok and sample.answer is not None}


@dataclass(frozen=True)
class EvaluationComparison:
    """Whether two evaluations pair, and their figures: over all examples (ALL) and by group."""

    a: EvaluatedSide
    b: EvaluatedSide
    comparison: Comparison
    measures: dict[str, Measures]
    remarks: tuple[str, ...]

    @property
    def rows(self) -> list[ComparedFigure]:
        """The scores side by side, each difference in words."""
        rows = []
        for name, measured in self.measures.items():
            interval = measured.interval
            text = f"{signed(interval.difference)} ({signed(interval.low)} … {signed(interval.high)})"
            a, b = (float(share) for share in measured.partial)
            title = "score" if name == ALL else f"score, {name}"
            n = measured.n
            rows.append(ComparedFigure(f"score.{name}", title, "", "higher", a, b, n, n, None, text))
        return rows

    @property
    def lines(self) -> list[str]:
        """What else the pairs show, a sentence each: wins, losses, McNemar's test."""
        whole = self.measures.get(ALL)
        if whole is None:
            return []
        flips = whole.flips
        changed = (
            f"{flips.wins} won, {flips.losses} lost, {flips.both_right} right and {flips.both_wrong} wrong both times"
        )
        return [f"{changed}; McNemar p {flips.p:.3g} (exact), n = {whole.n}"]

    def to_json(self) -> dict[str, Any]:
        """Return the shape of `runs compare --json` for evaluations."""
        value: dict[str, Any] = {"a": self.a.name, "b": self.b.name, "kind": "evaluation"}
        value |= {**self.comparison.to_json(), "sentence": self.comparison.sentence(), "remarks": list(self.remarks)}
        if self.comparison.comparable:
            whole = self.measures[ALL]
            value |= {"n": whole.n, "score": _scores(whole)}
            value["groups"] = {name: _scores(each) for name, each in self.measures.items() if name != ALL}
        return value


def evaluated_side(run: RunFolder, name: str = "") -> EvaluatedSide:
    """Return a side of an evaluation: the one called `name`, else the tested one. Raises LabError where there is
    none.
    """
    sides = [side for side in SIDES if run.file(f"{side}.jsonl").exists()]
    side = name or next(iter(sides), "")
    if side not in sides:
        what = f"no side “{side}”" if side else "no answers"
        raise LabError(
            f"{run.name} has {what}.",
            f"Sides: {', '.join(sides)}; name one as RUN:SIDE." if sides else "Only evaluations that answered have.",
            code="side-missing",
        )
    read, stated = read_side(run.file(f"{side}.jsonl")), run.read_json(CONDITIONS)
    conditions = stated.get("after" if side == "blind" else side) if isinstance(stated, dict) else None
    if side == "blind" and conditions is None and isinstance(stated, dict):
        conditions = stated.get("before")
    scorers = {}
    for line in run.read_jsonl(f"{side}.jsonl"):
        options = line.get("options")
        scorer = str(line.get("scorer") or "")
        scorers[str(line.get("id"))] = f"{scorer} {digest(options)[:12]}" if options else scorer
    state = str(run.state().get("state", "unknown"))
    invalid = "" if state == "done" else f"did not come to its end (state: {state})"
    if state in FINAL and read.problems:
        invalid = read.problems[0]
    if not isinstance(conditions, dict):
        invalid = invalid or "has no conditions, so nothing can be compared with it"
    tested = next(iter(sides), "")
    label = run.name if side == tested else f"{run.name}:{side}"
    return EvaluatedSide(label, read.samples, scorers, conditions if isinstance(conditions, dict) else {}, invalid)


def compare_evaluations(a: EvaluatedSide, b: EvaluatedSide, only: str | None = None) -> EvaluationComparison:
    """Pair two sides. `only` is the condition that may differ. Raises LabError for a condition that there is not."""
    known = {"examples", "truth", "question", "scorer", "prompt_sha256", "system_sha256", *DECODING}
    if only is not None and only not in known - {"examples"}:
        raise LabError(
            f"There is no condition “{only}” of an evaluation that may differ.",
            f"Conditions: {', '.join(sorted(known - {'examples'}))}.",
            code="condition-unknown",
        )
    differs, same = _differences(a, b)
    allowed = next((difference for difference in differs if difference.key == only), None)
    invalid = [f"{side.name} {side.invalid}." for side in (a, b) if side.invalid]
    rest = [difference for difference in differs if difference is not allowed]
    comparison = Comparison(rest, same, [], allowed, invalid)
    both = sorted(a.answered & b.answered)
    remarks = [
        f"{many(len(side.samples) - len(side.answered), 'example')} left out: the request of {side.name} failed"
        for side in (a, b)
        if len(side.answered) < len(side.samples)
    ]
    for key in SAID:
        first, second = a.conditions.get(key), b.conditions.get(key)
        if first != second:
            label = COMPARED.get(key, key)
            remarks.append(f"{label} differs: {shown(key, first)} against {shown(key, second)}")
    if not comparison.comparable:
        return EvaluationComparison(a, b, comparison, {}, tuple(remarks))
    if len(both) < 2:
        few = [f"only {many(len(both), 'example')} answered by both."]
        return EvaluationComparison(a, b, Comparison(rest, same, [], allowed, few), {}, tuple(remarks))
    groups = list(dict.fromkeys(a.samples[i].group for i in both))
    measures = {ALL: _measured(a, b, both)}
    for group in groups if len(groups) > 1 else ():
        ids = [i for i in both if a.samples[i].group == group]
        if len(ids) > 1:
            measures[group] = _measured(a, b, ids)
    return EvaluationComparison(a, b, comparison, measures, tuple(remarks))


def _measured(a: EvaluatedSide, b: EvaluatedSide, ids: list[str]) -> Measures:
    return paired([a.samples[i] for i in ids], [b.samples[i] for i in ids], interval=paired_difference)


def _differences(a: EvaluatedSide, b: EvaluatedSide) -> tuple[list[Difference], dict[str, Any]]:
    """What stands against pairing them, and what agrees, by condition."""
    differs: list[Difference] = []
    same: dict[str, Any] = {}
    alone = (a.samples.keys() - b.samples.keys(), b.samples.keys() - a.samples.keys())
    if any(alone):
        first, second = (f"{len(ids)} of its own" for ids in alone)
        differs.append(Difference("examples", "examples", first, second))
    both = a.samples.keys() & b.samples.keys()
    for key, label, fields in (
        ("examples", "images", ("picture_sha256", "pixel_sha256")),
        ("question", "question", ("prompt_sha",)),
        ("truth", "truth", ("truth_sha",)),
    ):
        off = [i for i in both if any(getattr(a.samples[i], f) != getattr(b.samples[i], f) for f in fields)]
        if off:
            least = min(off)
            differs.append(Difference(key, label, f"of {least}", f"{many(len(off), 'example')} otherwise"))
    first, second = _counted(a.scorers), _counted(b.scorers)
    if any(a.scorers.get(i) != b.scorers.get(i) for i in both):
        differs.append(Difference("scorer", "scorer", first, second))
    else:
        same["scorer"] = first
    if not same_prompt(a.conditions, b.conditions):
        form = COMPARED["prompt_sha256"]
        differs.append(Difference("prompt_sha256", form, prompt_of(a.conditions), prompt_of(b.conditions)))
    for key in ("system_sha256", *DECODING):
        left, right = a.conditions.get(key), b.conditions.get(key)
        if left != right:
            differs.append(Difference(key, COMPARED.get(key, key.replace("_", " ")), left, right))
        elif left is not None:
            same[key] = left
    return differs, same


def _counted(scorers: Mapping[str, str]) -> str:
    """The scorers in a few words, the most used first."""
    return ", ".join(name or "not recorded" for name, _ in Counter(scorers.values()).most_common(3)) or "none"


def _scores(measured: Measures) -> dict[str, Any]:
    interval = measured.interval
    first, second = (float(share) for share in measured.partial)
    return {
        "n": measured.n,
        "a": first,
        "b": second,
        "difference": interval.difference,
        "low": interval.low,
        "high": interval.high,
        "method": interval.method,
        "wins": measured.flips.wins,
        "losses": measured.flips.losses,
        "mcnemar_p": measured.flips.p,
    }
