"""A plan frozen earlier, given by its hash or its file: the very one, bound to data that have not changed since."""

from __future__ import annotations

import re
from pathlib import Path

from vlmconsole.gates.evidence import PLAN, PLANS
from vlmconsole.gates.plan import Plan, parse_plan
from vlmconsole.ledger.chain import Chain, Ledger, sha256_file
from vlmconsole.ledger.freezing import FrozenError
from vlmconsole.system.reading import read_json
from vlmconsole.system.typed_paths import named

SHORTEST = 8  # hex digits by which a frozen plan may be named


def is_frozen(name: str) -> bool:
    """Return whether `name` means a plan frozen earlier: its hash (or the beginning of it), or its file."""
    return name.endswith(".json") or re.fullmatch(rf"[0-9a-f]{{{SHORTEST},64}}", name) is not None


def read_frozen_plan(name: str, home: Path, ledger: Ledger) -> Plan:
    """Return the frozen plan of that hash or file, checked against the ledger.

    Raises FrozenError (never frozen, changed since, gone, ledger broken) and PlanError.
    """
    chain = ledger.read()
    if chain.broken:
        raise FrozenError(
            f"The ledger is broken, so no frozen plan can be trusted: {chain.broken}.", code="ledger-broken"
        )
    frozen = [e for e in chain.entries if e.get("kind") == "frozen"]
    plans = [e for e in frozen if e.get("run") == PLANS or e.get("file") == PLAN]
    if name.endswith(".json"):
        path = named(name).absolute()
        if not path.is_file():
            raise FrozenError(f"{name} is no file.", f"Frozen plans lie in {home / PLANS}.", code="plan-missing")
        sha = sha256_file(path)
        # A copy elsewhere is as good: the hash is what was frozen.
        known = {sha} & {e["sha256"] for e in plans} or {e["sha256"] for e in plans if place_of(e, home) == path}
    else:
        known = {e["sha256"] for e in plans if str(e["sha256"]).startswith(name)}
        places = [place_of(e, home) for e in plans if e["sha256"] in known]
        path = next((place for place in places if place.is_file()), places[0] if places else Path(name))
    if not known:
        raise FrozenError(
            f"No plan was ever frozen as {name}.",
            "vlmconsole gates freeze PLAN --data DATASET freezes one.",
            code="plan-unfrozen",
        )
    if len(known) > 1:
        raise FrozenError(
            f"{len(known)} frozen plans begin with {name}.", "Give more of the hash.", code="plan-ambiguous"
        )
    if not path.is_file():
        raise FrozenError(
            f"The frozen plan {path} is gone.",
            "Restore it from a backup: its hash is in the ledger.",
            code="plan-missing",
        )
    sha, wanted = sha256_file(path), next(iter(known))
    if sha != wanted:
        raise FrozenError(
            f"{path} was changed after it was frozen (frozen {wanted[:12]}…, now {sha[:12]}…).",
            "Nothing is judged by it; freeze a new plan, or restore the file.",
            code="plan-changed",
        )
    return parse_plan(read_json(path), str(path))


def changed_plans(home: Path, chain: Chain) -> list[str]:
    """Return a sentence for each plan frozen for the lab that is not as it was frozen."""
    first: dict[str, dict[str, object]] = {}
    for entry in chain.entries:
        if entry.get("kind") == "frozen" and entry.get("run") == PLANS:
            first.setdefault(str(entry.get("file")), entry)
    changed = []
    for name, entry in first.items():
        path, wanted = place_of(entry, home), str(entry["sha256"])
        if not path.is_file():
            changed.append(f"the frozen plan {name} is gone")
        elif (sha := sha256_file(path)) != wanted:
            changed.append(f"the frozen plan {name} was changed (frozen {wanted[:12]}…, now {sha[:12]}…)")
    return changed


def place_of(entry: dict[str, object], home: Path) -> Path:
    """Return where a frozen plan lies: among the lab's plans, or in the run that it was frozen for."""
    folder = home / PLANS if entry.get("run") == PLANS else home / "runs" / str(entry.get("run"))
    return (folder / str(entry.get("file"))).absolute()
