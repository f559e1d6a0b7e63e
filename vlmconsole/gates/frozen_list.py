"""Every plan that was ever frozen here, once each: since when, for what, by which runs it judged, with which verdicts.

It reads the ledger and the frozen files, and judges nothing: the verdicts are those that were given.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vlmconsole.gates.evidence import PLAN, PLANS
from vlmconsole.gates.frozen import place_of
from vlmconsole.gates.plan import Plan, PlanError, parse_plan
from vlmconsole.gates.trained import freezing
from vlmconsole.ledger.chain import Chain, sha256_file
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.system.reading import read_json
from vlmconsole.text.signs import LATE_PASS


@dataclass(frozen=True)
class Use:
    """A run that is judged by a plan. `verdict` is the newest given ("" for none yet), `t` its wall seconds.

    `gates` are its counts in words, `training` says when the plan was frozen against the training, `late` if after.
    """

    run: str
    state: str
    verdict: str = ""
    gates: str = ""
    t: float | None = None
    training: str = ""
    late: bool = False

    @property
    def label(self) -> str:
        """The verdict for people: a PASS by a plan that was frozen late is no plain one."""
        return LATE_PASS if self.verdict == "PASS" and self.late else self.verdict


@dataclass(frozen=True)
class Listed:
    """One frozen plan. Times are wall seconds; `pictures` is 0 for limits alone; `fault` says what is not as frozen."""

    sha256: str
    name: str
    frozen: float
    gates: int
    pictures: int
    limits_sha256: str  # of its unbound form, "" when this is one
    limits: float | None  # when that was first frozen
    base_sha256: str | None
    before_adapter: str | None
    path: str
    fault: str
    runs: tuple[Use, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def listed(places: Places, chain: Chain) -> list[Listed]:
    """Return the plans in the order of their freezing, newest first. Limits stand with the bound plan that came of
    them.
    """
    plans = every(places, chain)
    absorbed = {plan.limits_sha256 for plan in plans}
    return [plan for plan in plans if plan.sha256 not in absorbed or plan.runs]


def every(places: Places, chain: Chain) -> list[Listed]:
    """Return the same with the limits that a bound plan came of, too."""
    frozen: dict[str, list[dict[str, Any]]] = {}
    for entry in chain.entries:
        if entry.get("kind") == "frozen" and (entry.get("run") == PLANS or entry.get("file") == PLAN):
            frozen.setdefault(str(entry["sha256"]), []).append(entry)
    plans = [plan for sha, entries in frozen.items() if (plan := _listed(sha, entries, places, chain)) is not None]
    times = {sha: float(entries[0]["t"]) for sha, entries in frozen.items()}
    return sorted(
        (Listed(**{**vars(plan), "limits": times.get(plan.limits_sha256)}) for plan in plans),
        key=lambda plan: -plan.frozen,
    )


def _listed(sha: str, entries: list[dict[str, Any]], places: Places, chain: Chain) -> Listed | None:
    """None for a sweep's plan, which is no gate plan."""
    paths = [place_of(entry, places.home) for entry in entries]
    value = next((value for path in paths if (value := _read(path, sha)) is not None), None)
    plan = _plan(value)
    runs = [RunFolder(places.runs / str(entry["run"])) for entry in entries if entry.get("run") != PLANS]
    if plan is None and value is not None:
        return None
    if plan is None and runs and not any(line.get("plan") == sha for line in chain.entries):
        return None  # a run's changed file that no gate verdict speaks of: `verify` names it
    existing = [path for path in paths if path.is_file()]
    # Frozen bytes may lie in several places (the lab's plans, a run): one that was changed is told beside a good one.
    changed = [path for path in existing if _read(path, sha) is None]
    fault = "changed since it was frozen" if changed else "" if plan is not None else "its file is gone"
    at = float(entries[0]["t"])
    return Listed(
        sha256=sha,
        name=plan.name if plan is not None else str(entries[0].get("file")),
        frozen=at,
        gates=len(plan.gates) if plan is not None else 0,
        pictures=sum(len(rows) for rows in plan.data.pictures.values()) if plan is not None else 0,
        limits_sha256=plan.template_sha256 if plan is not None else "",
        limits=None,
        base_sha256=plan.base_sha256 if plan is not None else None,
        before_adapter=plan.before_adapter if plan is not None else None,
        path=str((changed or existing or paths)[0]),
        fault=fault,
        runs=tuple(_uses(sha, at, runs, places, chain)),
    )


def _uses(sha: str, frozen: float, runs: Iterable[RunFolder], places: Places, chain: Chain) -> Iterable[Use]:
    given = {str(e["run"]): e for e in chain.entries if e.get("kind") == "verdict" and e.get("plan") == sha}
    for name in dict.fromkeys([*(run.name for run in runs), *given]):
        run, entry = RunFolder(places.runs / name), given.get(name, {})
        freezing_known = freezing(run, places, frozen)
        yield Use(
            run=name,
            state=str(run.state().get("state", "")) if run.path.is_dir() else "gone",
            verdict=str(entry.get("verdict", "")),
            gates=str(entry.get("gates", "")),
            t=entry.get("t"),
            training=freezing_known.text if freezing_known is not None else "",
            late=freezing_known is not None and freezing_known.late,
        )


def _read(path: Path, sha: str) -> Any:
    """The value of a file that still is what was frozen; None for any other."""
    try:
        return read_json(path) if path.is_file() and sha256_file(path) == sha else None
    except (OSError, ValueError):
        return None


def _plan(value: Any) -> Plan | None:
    try:
        return parse_plan(value, PLAN) if value is not None else None
    except PlanError:
        return None
