"""What the start of a comparison has in a plan's groups, as finished evaluations of this lab measured it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vlmconsole.gates.evidence import CONDITIONS
from vlmconsole.gates.plan import Plan
from vlmconsole.gates.power import BaseShare
from vlmconsole.runs.folder import RunFolder, list_runs
from vlmconsole.runs.places import Places
from vlmconsole.text.numbers import number

SIDES = ("before", "after")


def bases(plan: Plan, places: Places, names: Iterable[str] = ()) -> dict[str, BaseShare]:
    """Return the newest measured shares of before by group, where an evaluation of the same model on the same data is
    here.

    `names` limits the runs to these.
    """
    groups = {group.name: group.split for group in plan.groups}
    return _newest(
        places,
        set(names),
        groups,
        lambda summary: _same_data(plan, summary),
        lambda conditions: _is_before(plan, conditions),
    )


def measured_on(dataset: str, digest: str, groups: Mapping[str, str], places: Places) -> dict[str, BaseShare]:
    """Return the newest measured shares of any model without an adapter on this very dataset; `groups`: name to
    split.
    """

    def same(summary: Mapping[str, Any]) -> bool:
        data = summary.get("data")
        return isinstance(data, dict) and data.get(dataset) == digest

    return _newest(places, set(), groups, same, lambda held: isinstance(held, dict) and held.get("adapter") is None)


def _newest(
    places: Places,
    wanted: set[str],
    groups: Mapping[str, str],
    same_data: Callable[[Mapping[str, Any]], bool],
    is_before: Callable[[Any], bool],
) -> dict[str, BaseShare]:
    known: dict[str, BaseShare] = {}
    for run in list_runs(places.runs):
        if run.job().get("kind") != "evaluate" or run.state().get("state") != "done":
            continue
        if wanted and run.name not in wanted:
            continue
        summary, conditions = run.read_json("summary.json"), run.read_json(CONDITIONS)
        if not isinstance(summary, dict) or not isinstance(conditions, dict) or not same_data(summary):
            continue
        for side in SIDES:
            if not is_before(conditions.get(side)):
                continue
            for group, split in groups.items():
                shares = {} if group in known else _shares(summary, group, side) or _of_split(run, side, split)
                if shares:
                    known[group] = BaseShare(shares, run.name)
        if len(known) == len(groups):
            break
    return known


def _same_data(plan: Plan, summary: Mapping[str, Any]) -> bool:
    """Whether it asked about the plan's data: by digest where the plan is bound, else by the recipe's name."""
    data = summary.get("data")
    if not isinstance(data, dict):
        return False
    if plan.data.digests:
        return any(data.get(name) == digest for name, digest in plan.data.digests.items())
    return bool(set(plan.data.recipes) & data.keys())


def _is_before(plan: Plan, conditions: Any) -> bool:
    """Whether a side is what the plan compares with, as far as the plan names it."""
    if not isinstance(conditions, dict) or conditions.get("adapter") != plan.before_adapter:
        return False
    return plan.base_sha256 is None or conditions.get("model_sha256") == plan.base_sha256


def _shares(summary: Mapping[str, Any], group: str, side: str) -> dict[str, float]:
    """The shares that a gate may start from; {} for a group that was not asked, or not answered."""
    groups = summary.get("groups")
    of_group = groups.get(group) if isinstance(groups, dict) else None
    figures = of_group.get(side) if isinstance(of_group, dict) else None
    if not isinstance(figures, dict) or not (answered := number(figures.get("answered"))):
        return {}
    valid = number(figures.get("valid"))
    named = {key: number(figures.get(key)) for key in ("all_correct", "partial")}
    named["valid"] = None if valid is None else valid / answered
    unseen = of_group.get("blind") if isinstance(of_group, dict) else None
    named["blind"] = number(unseen.get("score")) if isinstance(unseen, dict) else None
    return {key: share for key, share in named.items() if share is not None}


def _of_split(run: RunFolder, side: str, split: str) -> dict[str, float]:
    """The same of a whole split, whose examples were asked by groups of their own; {} where none was answered."""
    lines = [line for line in run.read_jsonl(f"{side}.jsonl") if line.get("split") == split and line.get("http_ok")]
    partial = [value for line in lines if (value := number(line.get("partial"))) is not None]
    if not partial or len(partial) != len(lines):
        return {}
    unseen = [line for line in run.read_jsonl("blind.jsonl") if line.get("split") == split and line.get("http_ok")]
    blind = [value for line in unseen if (value := number(line.get("partial"))) is not None]
    n = len(lines)
    shares = {
        "partial": sum(partial) / n,
        "all_correct": sum(line.get("all_correct") is True for line in lines) / n,
        "valid": sum(line.get("valid") is True for line in lines) / n,
    }
    return shares | ({"blind": sum(blind) / len(blind)} if blind else {})
