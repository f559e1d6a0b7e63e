"""Two trainings of one kind: their conditions, their figures and their curves, or which conditions differ.

Everything that a training was asked to do is a condition: rates, data by hash, seed, steps. As with measurements, a
comparison is refused unless all agree, or only the one that is named as the experiment's own does. A training's figures
say how it went; which of two made the better model only a paired evaluation can tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from vlmconsole.compare.runs import ComparedFigure, Comparison, Difference
from vlmconsole.errors import LabError
from vlmconsole.measure.views import cells
from vlmconsole.runs.conditions import prompt_of
from vlmconsole.runs.folder import RunFolder
from vlmconsole.text.bars import sparkline
from vlmconsole.text.numbers import figure, number

TRAININGS = {"sft": "supervised", "grpo": "reinforcement learning"}
LABELS = {
    "engine_version": "engine version",
    "model_sha256": "base weights",
    "model": "base",
    "start": "starts from",
    "prompt": "prompt form",
    "data": "data",
    "lr": "learning rate",
    "max_new_tokens": "max tokens",
}
#: settings that are a condition under another name, or change nothing that is learnt
APART = frozenset(
    {"base", "adapter", "data", "precision", "device", "other_base", "checkpoint_every", "shown", "dev_batch"}
)
#: a curve's key in training.jsonl → (name, unit, which way is better; "" where neither is)
CURVES: dict[str, tuple[str, str, str]] = {
    "loss": ("loss", "", "lower"),
    "reward_mean": ("reward", "", "higher"),
    "grad_norm": ("gradient norm", "", ""),
    "lr": ("learning rate", "", ""),
    "entropy": ("entropy", "nats", ""),
    "zero_advantage": ("groups without advantage", "", "lower"),
}
NO_VERDICT = "How two trainings went, no verdict on what they made: a paired evaluation compares that."
POINTS = 400  # of one curve; each is then the mean of several steps
DEV = re.compile(r"dev-epoch(\d+)\.jsonl")


@dataclass(frozen=True)
class Trained:
    """One training as it is compared. `curves` are (step, value) by key; `invalid` says why it may not be compared."""

    name: str
    kind: str
    conditions: dict[str, Any]
    curves: dict[str, list[tuple[float, float]]]
    dev: dict[int, tuple[float, int]]  # epoch: mean reward, n
    summary: dict[str, Any]
    seconds: float | None  # a step, median
    invalid: str = ""


@dataclass(frozen=True)
class TrainingComparison:
    """What two trainings have alike and what not, and their figures; curves are shown of comparable ones alone."""

    a: Trained
    b: Trained
    comparison: Comparison
    rows: list[ComparedFigure]

    def to_json(self) -> dict[str, Any]:
        """Return the shape of `runs compare --json` for trainings."""
        value: dict[str, Any] = {"a": self.a.name, "b": self.b.name, "kind": self.a.kind}
        value |= {**self.comparison.to_json(), "sentence": self.comparison.sentence()}
        if self.comparison.comparable:
            value["figures"] = [{**vars(row), "change": row.change} for row in self.rows]
            keys = [key for key in CURVES if key in self.a.curves or key in self.b.curves]
            value["curves"] = {key: {"a": self.a.curves.get(key, []), "b": self.b.curves.get(key, [])} for key in keys}
        return value


def family(run: RunFolder) -> str:
    """`training`, `evaluation`, `measurement`, or "" for a run with nothing to compare."""
    kind = run.job().get("kind")
    if kind in TRAININGS:
        return "training"
    if kind == "evaluate":
        return "evaluation"
    return "measurement" if any(cell.summary for cell in cells(run)) else ""


def refusal(a: RunFolder, b: RunFolder) -> str:
    """Return why runs of these two families cannot be compared at all, in one sentence; "" when they might be."""
    families = [family(run) for run in (a, b)]
    if len(set(families)) > 1 and all(families):
        named = " and ".join(f"{run.name} is {_what(run)}" for run in (a, b))
        return f"Not comparable: {named}: they have no figure in common."
    kinds = [run.job().get("kind") for run in (a, b)]
    if families == ["training", "training"] and kinds[0] != kinds[1]:
        named = " and ".join(f"{run.name} is {TRAININGS[str(run.job().get('kind'))]}" for run in (a, b))
        return (
            f"Not comparable: {named}: their losses are not one quantity. What each made is compared by a paired "
            "evaluation over the same images."
        )
    return ""


def _what(run: RunFolder) -> str:
    kind = str(run.job().get("kind"))
    if kind == "evaluate":
        return "an evaluation"
    return f"a training ({kind})" if kind in TRAININGS else f"a measurement of a server ({kind})"


def compare_trainings(a: RunFolder, b: RunFolder, only: str | None = None) -> TrainingComparison:
    """Both trainings' conditions against each other. Raises LabError for one without a step, or an unknown `only`."""
    left, right = trained(a), trained(b)
    keys = list(dict.fromkeys([*left.conditions, *right.conditions]))
    if only is not None and only not in keys:
        raise LabError(
            f"There is no condition “{only}” of a training.",
            f"Conditions: {', '.join(keys)}.",
            code="condition-unknown",
        )
    differs: list[Difference] = []
    same: dict[str, Any] = {}
    for key in keys:
        first, second = left.conditions.get(key), right.conditions.get(key)
        if key == "prompt" and None in (first, second):
            continue  # older runs through verl recorded none
        if first == second:
            same |= {key: first} if first is not None else {}
        else:
            differs.append(Difference(key, LABELS.get(key, key.replace("_", " ")), first, second))
    allowed = next((first for first in differs if first.key == only), None)
    invalid = [f"{side.name} {side.invalid}." for side in (left, right) if side.invalid]
    left_out = [first for first in differs if first is not allowed]
    return TrainingComparison(left, right, Comparison(left_out, same, [], allowed, invalid), _figures(left, right))


def trained(run: RunFolder) -> Trained:
    """Return a training's conditions, curves and figures as its files tell them. Raises LabError when it made no
    step.
    """
    rows = [row for row in run.read_jsonl("training.jsonl") if number(row.get("step")) is not None]
    state = str(run.state().get("state", "unknown"))
    if not rows:
        raise LabError(
            f"{run.name} has no step to compare (state: {state}).", "Its training.jsonl is empty.", code="steps-missing"
        )
    job, summary, conditions = run.job(), _object(run, "summary.json"), _object(run, "conditions.json")
    spec = job.get("spec")
    curves = {key: _thin(_points(rows, key)) for key in CURVES if len(_points(rows, key)) > 1}
    seconds = [value for row in rows if (value := number(row.get("seconds"))) is not None]
    return Trained(
        run.name,
        str(job.get("kind")),
        _conditions(conditions, spec if isinstance(spec, dict) else {}, summary),
        curves,
        _development(run),
        summary,
        median(seconds) if seconds else None,
        "" if state == "done" else f"did not come to its end (state: {state})",
    )


def _object(run: RunFolder, name: str) -> dict[str, Any]:
    value = run.read_json(name)
    return value if isinstance(value, dict) else {}


def _conditions(stored: dict[str, Any], spec: dict[str, Any], summary: dict[str, Any]) -> dict[str, Any]:
    """What a training's outcome depends on, by key; what was asked for stands under its own name."""
    told_of = ("hardware", "engine", "engine_version", "model", "model_sha256", "precision")
    conditions = {key: stored.get(key) for key in told_of}
    settings = stored.get("settings")
    settings = settings if isinstance(settings, dict) else {}
    conditions["device"] = settings.get("device")
    conditions["prompt"] = prompt_of(stored)
    parent = summary.get("parent_sha256")
    conditions["start"] = str(parent) if parent else stored.get("adapter") or "the base"
    data = summary.get("data") or settings.get("data") or settings.get("dataset_sha256")
    if isinstance(data, dict) and len(data) == 1:  # a run that did not come to its end stores the digest alone
        data = next(iter(data.values()))
    conditions["data"] = data
    return conditions | {key: value for key, value in spec.items() if key not in APART}


def _points(rows: Iterable[dict[str, Any]], key: str) -> list[tuple[float, float]]:
    return [(float(row["step"]), y) for row in rows if (y := number(row.get(key))) is not None]


def _thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most POINTS points: each the mean of as many neighbours, at the last one's step."""
    every = -(-len(points) // POINTS)
    parts = [points[at : at + every] for at in range(0, len(points), every)]
    return [(part[-1][0], fmean(y for _, y in part)) for part in parts]


def _development(run: RunFolder) -> dict[int, tuple[float, int]]:
    scores = {}
    for path in sorted(run.path.glob("dev-epoch*.jsonl")):
        match = DEV.fullmatch(path.name)
        rewards = [value for row in run.read_jsonl(path.name) if (value := number(row.get("reward"))) is not None]
        if match and rewards:
            scores[int(match[1])] = (fmean(rewards), len(rewards))
    return dict(sorted(scores.items()))


def _last_tenth(points: Sequence[tuple[float, float]] | None) -> float | None:
    if not points:
        return None
    return fmean(y for _, y in points[-max(1, len(points) // 10) :])


def _figures(a: Trained, b: Trained) -> list[ComparedFigure]:
    """Point figures of both, `n` being steps, or pictures for development."""
    rows = []

    def add(key: str, name: str, unit: str, better: str, values: Sequence[float | None], n: Sequence[Any]) -> None:
        if any(value is not None for value in values):
            rows.append(ComparedFigure(key, name, unit, better, values[0], values[1], n[0], n[1]))

    sides = (a, b)
    steps = [number(side.summary.get("steps")) for side in sides]
    counts = [None if step is None else int(step) for step in steps]
    for key, (name, unit, better) in CURVES.items():
        if key == "lr":
            continue  # a condition; its curve is shown
        ends = [_last_tenth(side.curves.get(key)) for side in sides]
        add(key, f"{name}, last tenth of the steps", unit, better, ends, counts)
    nothing: tuple[float | None, int | None] = (None, None)
    for epoch in sorted(set(a.dev) | set(b.dev)):
        both = [side.dev.get(epoch, nothing) for side in sides]
        counted = " and ".join(dict.fromkeys(str(n) for _, n in both if n is not None))
        name = f"development reward, epoch {epoch} (n = {counted})"
        add(f"dev.{epoch}", name, "", "higher", [step[0] for step in both], [step[1] for step in both])
    chosen = [number(side.summary.get("epoch")) for side in sides]
    add("epoch", "chosen epoch", "", "", chosen, counts)
    best = [side.dev.get(int(epoch), nothing) if epoch else nothing for side, epoch in zip(sides, chosen, strict=True)]
    add("dev", "development reward, chosen epoch", "", "higher", [x[0] for x in best], [x[1] for x in best])
    add("seconds", "seconds a step, median", "s", "lower", [side.seconds for side in sides], counts)
    peaks = [number((side.summary.get("memory") or {}).get("peak_bytes")) for side in sides]
    add("memory", "memory peak", "GiB", "lower", [None if p is None else p / 2**30 for p in peaks], counts)
    return rows


def drawn_curves(comparison: TrainingComparison, width: int) -> list[str]:
    """Return a line for each curve of each side, both on one scale, in at most `width` bars, with its two ends."""
    lines = []
    for key, (name, unit, _) in CURVES.items():
        both = [[value for _, value in side.curves.get(key, [])] for side in (comparison.a, comparison.b)]
        low, high = (pick((*both[0], *both[1]), default=0.0) for pick in (min, max))
        for side, values in zip("ab", both, strict=True):
            if values:
                title = name if side == "a" or not both[0] else ""
                ends = f"{figure(values[0])} → {figure(values[-1])} {unit}".rstrip()
                lines.append(f"{title:<25}{side} {sparkline(values, width, low, high)}  {ends}")
    return lines
