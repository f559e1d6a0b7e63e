"""Figures of an evaluation as its summary holds them: score and HTTP success apart, and paired differences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vlmconsole.gates.measures import exact, paired
from vlmconsole.gates.samples import Sample
from vlmconsole.scoring.bounded import mean_interval, paired_difference


def side_figures(samples: Iterable[Sample]) -> dict[str, Any]:
    """Shares (0 to 1) of one group's answered questions. A failed request is no wrong answer and no part of them."""
    every = list(samples)
    answered = [sample for sample in every if sample.http_ok and sample.answer is not None]
    n = len(answered)
    return {
        "n": len(every),
        "answered": n,
        "http_failures": len(every) - n,
        "valid": sum(sample.valid for sample in answered),
        "all_correct": sum(sample.all_correct for sample in answered) / n if n else None,
        "partial": float(sum(exact(sample.partial) for sample in answered) / n) if n else None,
        "reward": float(sum(exact(sample.reward) for sample in answered) / n) if n else None,
    }


def group_figures(
    before: dict[str, Sample], after: dict[str, Sample] | None, names: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """For each group: the sides, and over the pictures that both answered the paired difference with its interval."""
    out: dict[str, dict[str, Any]] = {}
    for name in names:
        first = {i: s for i, s in before.items() if s.group == name}
        out[name] = {"before": side_figures(first.values()), "scores": {"before": score_figures(first.values())}}
        if after is None:
            continue
        second = {i: s for i, s in after.items() if s.group == name}
        out[name]["after"] = side_figures(second.values())
        out[name]["scores"]["after"] = score_figures(second.values())
        both = sorted(i for i in first.keys() & second.keys() if _answered(first[i]) and _answered(second[i]))
        if len(both) >= 2:
            pairs = [first[i] for i in both], [second[i] for i in both]
            measures = paired(*pairs, interval=paired_difference).to_json()
            kept = ("n", "difference", "interval", "wins", "losses", "mcnemar_p")
            out[name]["paired"] = {key: measures[key] for key in kept}
    return out


def score_figures(samples: Iterable[Sample]) -> dict[str, Any]:
    """Return the score of one side over all groups, with its 95 % interval; an invalid answer counts as its score,
    mostly 0.

    A failed request is no wrong answer: it is counted as failed, and no part of the mean (None without an answer).
    """
    every = list(samples)
    answered = [sample for sample in every if _answered(sample)]
    figures: dict[str, Any] = {
        "n": len(every),
        "answered": len(answered),
        "failed": len(every) - len(answered),
        "correct": sum(sample.all_correct for sample in answered),
        "invalid": sum(not sample.valid for sample in answered),
    }
    if not answered:
        return figures | {"mean": None, "low": None, "high": None}
    interval = mean_interval([float(exact(sample.partial)) for sample in answered])
    return figures | interval.to_json() | {"method": interval.method}


def paired_figures(before: dict[str, Sample], after: dict[str, Sample]) -> dict[str, Any]:
    """Return the paired difference over all groups, of the examples that both sides answered; {} for fewer than two."""
    both = sorted(i for i in before.keys() & after.keys() if _answered(before[i]) and _answered(after[i]))
    if len(both) < 2:
        return {}
    measures = paired([before[i] for i in both], [after[i] for i in both], interval=paired_difference)
    interval, flips = measures.interval, measures.flips
    return {
        "n": len(both),
        "difference": interval.difference,
        "low": interval.low,
        "high": interval.high,
        "method": interval.method,
        "wins": flips.wins,
        "losses": flips.losses,
        "both_right": flips.both_right,
        "both_wrong": flips.both_wrong,
        "mcnemar_p": flips.p,
    }


def sight_figures(blind: dict[str, Sample], seen: dict[str, Sample], how: str) -> dict[str, Any]:
    """Return what the images are worth: the score without them, and the paired gain with them, over all groups."""
    paired_up = paired_figures(blind, seen)
    score = score_figures(blind.values())
    gain = {key: paired_up.get(key) for key in ("low", "high", "wins", "losses", "mcnemar_p", "method")}
    return {"how": how, "score": score["mean"], "n": paired_up.get("n", 0), "failed": score["failed"],
            "invalid": score["invalid"], "sight_gain": paired_up.get("difference"), **gain}  # fmt: skip


def _answered(sample: Sample) -> bool:
    return sample.http_ok and sample.answer is not None
