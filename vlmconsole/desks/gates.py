"""What there is to see of gates in one lab: judged runs, frozen plans, one of them opened, and its pictures.

Screens and reports read through here; it writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vlmconsole.gates.bases import bases
from vlmconsole.gates.evidence import PLAN, PLANS
from vlmconsole.gates.plan import Gate, Plan, PlanError, parse_plan
from vlmconsole.gates.power import GatePower, power
from vlmconsole.gates.sample_images import SampleImages
from vlmconsole.gates.samples import Case, read_side
from vlmconsole.gates.tamper_check import AUDITS, altered_audit
from vlmconsole.gates.trained import Freezing, standing
from vlmconsole.gates.verdict import Verdict, judge
from vlmconsole.ledger.chain import Chain, Ledger, sha256_file
from vlmconsole.ledger.chain import SealVerdict as Seal
from vlmconsole.runs.folder import RunFolder, list_runs
from vlmconsole.runs.places import Places
from vlmconsole.system.file_system import file_stamp
from vlmconsole.system.reading import UnreadableError, read_json

EVIDENCE = (PLAN, "before.jsonl", "after.jsonl", "conditions.json", "state.json", "manifest.json")
#: kinds whose plan.json is no gate plan: it says what is measured, and nothing there is judged
SWEEPS = frozenset({"sweep", "tune", "cache_probe", "bench"})


@dataclass(frozen=True)
class GateEntry:
    """One line of the list: a run with a gate plan or a verdict, or a plan frozen for the lab. `t` is wall seconds.

    `verdict` is the newest in the ledger as it is labelled (a PASS by a late plan is no plain one), "" while none was
    recorded; `state` is the run's.
    """

    kind: Literal["run", "plan"]
    name: str
    plan: str
    path: Path
    t: float | None
    verdict: str = ""
    state: str = ""


@dataclass(frozen=True)
class OpenedEntry:
    """A run or plan with everything the screen shows of it. `fault` says why a plan cannot be read."""

    entry: GateEntry
    plan: Plan | None = None
    verdict: Verdict | None = None
    frozen: float | None = None
    sha256: str = ""
    chain: str = ""  # what breaks the ledger; "" while it is intact
    seal: Seal | None = None
    cases: tuple[Case, ...] = ()
    earlier: tuple[dict[str, Any], ...] = ()
    audit: dict[str, Any] | None = None
    audit_altered: str = ""  # why the audit is not the one that was made
    freezing: Freezing | None = None  # of the plan, against the training
    fault: str = ""
    powers: tuple[GatePower, ...] = ()  # of a plan that has judged nothing yet

    def power_of(self, gate: Gate) -> GatePower | None:
        """Return what a gate can see; None where it is not known."""
        return next((each for each in self.powers if each.gate == gate), None)

    def deciding(self, gate: Gate) -> tuple[Case, ...]:
        """Return the pictures of a gate's group, those that decide about it first."""
        of_group = (case for case in self.cases if case.after.group == gate.group)
        return tuple(sorted(of_group, key=lambda case: (*gate.definition.deciding(case), case.after.id)))


class GateDesk:
    """Reads one lab home. Keeps what it read until a file changed; use it from one thread at a time."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.ledger = Ledger(places.ledger)
        self._chain: tuple[Any, Chain] | None = None
        self._names: dict[Path, tuple[Any, str, str]] = {}
        self._labels: dict[str, tuple[Any, str]] = {}
        self._opened: tuple[Any, OpenedEntry] | None = None
        self._powers: tuple[Any, tuple[GatePower, ...]] | None = None
        self.images = SampleImages(places)

    def chain(self) -> Chain:
        """Return the ledger, read again when it grew."""
        stamp = file_stamp(self.places.ledger)
        if self._chain is None or self._chain[0] != stamp:
            self._chain = (stamp, self.ledger.read())
        return self._chain[1]

    def listing(self) -> list[GateEntry]:
        """Runs that hold a gate plan or were judged, newest first; then the plans frozen for the lab, newest first.

        Limits that a bound plan came of are left out: they are in it.
        """
        chain, entries = self.chain(), []
        for run in list_runs(self.places.runs):
            entry = chain.last("verdict", run.name)
            if entry is None and (not run.file(PLAN).exists() or run.job().get("kind") in SWEEPS):
                continue
            plan = self._plan_name(run.file(PLAN))
            frozen = _frozen(chain, run.name, PLAN)
            state = str(run.state().get("state", ""))
            word = self._label(run, str(entry["verdict"])) if entry else ""
            entries.append(GateEntry("run", run.name, plan, run.path, frozen, word, state))
        plans = []
        for path in (self.places.home / PLANS).glob("*.json"):
            plans.append(GateEntry("plan", path.name, self._plan_name(path), path, _frozen(chain, PLANS, path.name)))
        # The limits of a bound plan are frozen just before it, under a hash of their own: one freezing, one line.
        limits = {
            self._limits(listing.path if listing.kind == "plan" else listing.path / PLAN)
            for listing in (*entries, *plans)
        }
        unfrozen = [listing for listing in plans if listing.name not in limits]
        return entries + sorted(unfrozen, key=lambda listing: (-(listing.t or 0.0), listing.name))

    def open(self, entry: GateEntry) -> OpenedEntry:
        """Judge a run, or read a plan. Never raises for what is wrong with it."""
        if entry.kind == "plan":
            return self._open_plan(entry)
        run = RunFolder(entry.path)
        stamp = (
            entry,
            file_stamp(self.places.ledger),
            file_stamp(self.places.home / AUDITS / f"{run.name}.json"),
            *(file_stamp(run.file(name)) for name in EVIDENCE),
            *((path.name, file_stamp(path)) for path in sorted(run.path.glob("d*.jsonl"))),
        )
        if self._opened is None or self._opened[0] != stamp:
            self._opened = (stamp, self._open_run(entry, run))
        return self._opened[1]

    def _open_run(self, entry: GateEntry, run: RunFolder) -> OpenedEntry:
        chain = self.chain()
        verdict = judge(run, self.ledger)
        first, second = (read_side(run.file(f"{side}.jsonl")).samples for side in ("before", "after"))
        cases = tuple(Case(first[i], second[i]) for i in sorted(first.keys() & second.keys()))
        path = run.file(PLAN)
        return OpenedEntry(
            entry,
            verdict.plan,
            verdict,
            verdict.frozen.t if verdict.frozen else entry.t,
            sha256_file(path) if path.exists() else "",
            chain.broken or "",
            self.ledger.verify(run, chain),
            cases,
            tuple(e for e in chain.entries if e.get("kind") == "verdict" and e.get("run") == run.name),
            read_audit(self.places, run.name),
            altered_audit(self.places, chain, run.name),
            verdict.freezing,
        )

    def _open_plan(self, entry: GateEntry) -> OpenedEntry:
        chain = self.chain()
        try:
            sha = sha256_file(entry.path)
            plan = parse_plan(read_json(entry.path), entry.name)
        except (OSError, ValueError, PlanError) as error:
            reason = str(error) if isinstance(error, UnreadableError) else f"{entry.path} cannot be read: {error}"
            return OpenedEntry(entry, chain=chain.broken or "", fault=reason)
        known = [e for e in chain.entries if e.get("kind") == "frozen" and e.get("file") == entry.name]
        fault = "" if known else "it was never frozen"
        if known and known[0]["sha256"] != sha:
            fault = f"it was changed after freezing (frozen {known[0]['sha256'][:12]}…, now {sha[:12]}…)"
        powers = self._power(plan, sha)
        return OpenedEntry(entry, plan, None, entry.t, sha, chain.broken or "", fault=fault, powers=powers)

    def _power(self, plan: Plan, sha: str) -> tuple[GatePower, ...]:
        """What the plan's gates can see, worked out again when a run came or went."""
        stamp = (sha, file_stamp(self.places.runs))
        if self._powers is None or self._powers[0] != stamp:
            self._powers = (stamp, tuple(power(plan, bases(plan, self.places))))
        return self._powers[1]

    def _label(self, run: RunFolder, verdict: str) -> str:
        """The verdict as :func:`standing` labels it, looked up again only when the run's own verdict changed."""
        stamp = (verdict, file_stamp(run.file("verdict.json")))
        if self._labels.get(run.name, (None, ""))[0] != stamp:
            self._labels[run.name] = (stamp, standing(run, verdict))
        return self._labels[run.name][1]

    def _plan_name(self, path: Path) -> str:
        return self._named(path)[0]

    def _limits(self, path: Path) -> str:
        """The file among the lab's plans that holds the limits of the bound plan at `path`; "" for none."""
        name, template = self._named(path)
        return f"{name}-{template[:12]}.json" if template else ""

    def _named(self, path: Path) -> tuple[str, str]:
        """(name, hash of the unbound form) of the plan in a file."""
        stamp = file_stamp(path)
        if path not in self._names or self._names[path][0] != stamp:
            try:
                value = read_json(path)
                name, template = str(value["name"]), str(value.get("template_sha256") or "")
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                name, template = "no plan" if stamp is None else "a plan that cannot be read", ""
            self._names[path] = (stamp, name, template)
        return self._names[path][1:]


def read_audit(places: Places, run: str) -> dict[str, Any] | None:
    """Return the newest audit of a run (`audit.json` of audit/run.py); None when it was never audited."""
    value = RunFolder(places.home / AUDITS).read_json(f"{run}.json")
    return value if isinstance(value, dict) else None


def _frozen(chain: Chain, run: str, file: str) -> float | None:
    for entry in chain.entries:
        if entry.get("kind") == "frozen" and entry.get("run") == run and entry.get("file") == file:
            return float(entry["t"])
    return None
