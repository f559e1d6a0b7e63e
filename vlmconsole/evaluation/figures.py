"""Figures of an evaluation as told in its summary: score and HTTP success apart, and paired differences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vlmconsole.gates.measures import exact, paired
from vlmconsole.gates.samples import Sample


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
        out[name] = {"before": side_figures(first.values())}
        if after is None:
            continue
        second = {i: s for i, s in after.items() if s.group == name}
        out[name]["after"] = side_figures(second.values())
        both = sorted(i for i in first.keys() & second.keys() if _told(first[i]) and _told(second[i]))
        if len(both) >= 2:
            measures = paired([first[i] for i in both], [second[i] for i in both]).to_json()
            kept = ("n", "difference", "interval", "wins", "losses", "mcnemar_p")
            out[name]["paired"] = {key: measures[key] for key in kept}
    return out


def _told(sample: Sample) -> bool:
    return sample.http_ok and sample.answer is not None
