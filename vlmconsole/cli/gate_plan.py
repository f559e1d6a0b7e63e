"""`vlmconsole gates show PLAN`: a frozen plan by its hash or name: its limits, when it was frozen, its images."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmconsole.cli.common import CANNOT_JUDGE, USAGE, emit, fail, state
from vlmconsole.system.reading import read_json
from vlmconsole.text.counts import many
from vlmconsole.text.times import moment

if TYPE_CHECKING:
    from rich.console import Console

    from vlmconsole.gates.frozen_list import Listed
    from vlmconsole.gates.plan import Plan
    from vlmconsole.gates.power import GatePower


def show_plan(name: str) -> int | None:
    """Show the frozen plan of that hash, its beginning, or its name; or one that waits to be frozen, as such.

    Returns the exit code: 0, or 3 for a plan that is not as it was frozen; None where no plan is meant by the name.
    """
    from vlmconsole.gates.frozen import SHORTEST
    from vlmconsole.gates.frozen_list import every, listed
    from vlmconsole.gates.plan import parse_plan
    from vlmconsole.ledger.chain import Ledger

    places = state.lab.places
    chain = Ledger(places.ledger).read()
    named = [listing for listing in listed(places, chain) if listing.name == name]
    if not named and re.fullmatch(rf"[0-9a-f]{{{SHORTEST},64}}", name):
        named = [listing for listing in every(places, chain) if listing.sha256.startswith(name)]
        if len(named) > 1:
            fail(f"{len(named)} frozen plans begin with {name}.", "Give more of the hash.", exit_status=USAGE)
    if not named:
        return _show_unfrozen(name)
    listing, others = named[0], named[1:]
    plan = None if listing.fault else parse_plan(read_json(Path(listing.path)), listing.path)
    powers = power_of(plan) if plan else []
    value = {
        **listing.to_json(),
        "frozen_plan": plan.value() if plan else None,
        "power": [gate.to_json() for gate in powers],
        "ledger_broken": chain.broken,
        "others": [{"sha256": other.sha256, "frozen": other.frozen} for other in others],
    }
    emit(value, lambda console: _print(console, listing, plan, powers, others, chain.broken))
    return CANNOT_JUDGE if listing.fault or chain.broken else 0


def base_label(plan: Plan) -> str:
    """What is known of the model that the comparison starts from."""
    return f"base {plan.base_sha256[:12]}…" if plan.base_sha256 else "base not bound"


def power_of(plan: Plan) -> list[GatePower]:
    """What each gate of a plan sees, from the base's scores as this lab has measured them."""
    from vlmconsole.gates.bases import bases
    from vlmconsole.gates.power import power

    return power(plan, bases(plan, state.lab.places))


def power_lines(powers: Iterable[GatePower]) -> list[str]:
    """Each gate's power in a line, those that decide nothing marked."""
    lines = [f"{'! ' if each.state else '  '}{each.gate.name} {each.gate.limit_text}: {each.text}" for each in powers]
    return ["power:", *lines] if lines else []


def frozen_figures(summary: dict[str, Any]) -> dict[str, Any]:
    """What a freezing made, for people: times and hashes as they are read, and what the comparison starts from."""
    at, base = summary.get("t"), summary.get("base_sha256")
    sha = str(summary.get("frozen") or "")
    return {
        "plan": summary.get("plan"),
        "frozen": moment(at) if isinstance(at, int | float) else None,
        "hash": f"{sha[:12]}… (an evaluation is judged by it with --set plan={sha[:12]})" if sha else None,
        "gates": summary.get("gates"),
        "pictures": summary.get("pictures"),
        "before": summary.get("before_adapter") or "the base model",
        "base": f"{str(base)[:12]}…" if base else "not bound",
        "file": summary.get("path"),
    }


def is_plan(name: str) -> bool:
    """Whether a shipped plan is called so, or a frozen one, by its name or hash."""
    from vlmconsole.gates.frozen import SHORTEST
    from vlmconsole.gates.frozen_list import every
    from vlmconsole.gates.plan import plan_names
    from vlmconsole.ledger.chain import Ledger

    places = state.lab.places
    plans = every(places, Ledger(places.ledger).read())
    hashed = len(name) >= SHORTEST and any(listing.sha256.startswith(name) for listing in plans)
    return hashed or name in plan_names() or any(listing.name == name for listing in plans)


def waiting(frozen: Iterable[str]) -> list[str]:
    """The shipped plans that were never frozen in this lab."""
    from vlmconsole.gates.plan import plan_names

    known = set(frozen)
    return [name for name in plan_names() if name not in known]


def _show_unfrozen(name: str) -> int | None:
    """A shipped plan, or one of a TOML file: what it would judge, and that it judges nothing yet."""
    from vlmconsole.gates.plan import load_plan, plan_names

    if name not in plan_names() and not name.endswith(".toml"):
        return None
    plan = load_plan(name)
    value: dict[str, Any] = {
        "name": plan.name,
        "sha256": plan.sha256,
        "frozen": None,
        "gates": len(plan.gates),
        "runs": [],
    }
    powers = power_of(plan)
    value |= {"frozen_plan": None, "plan": plan.value(), "power": [gate.to_json() for gate in powers]}
    emit(value, lambda console: _print_unfrozen(console, plan, name, powers))
    return 0


def _print_unfrozen(console: Console, plan: Plan, name: str, powers: list[GatePower]) -> None:
    _line(console, f"{plan.name} · not frozen in this lab, so it judges nothing yet", "bold")
    _line(console, f"freeze its limits:          vlmconsole gates freeze {name}")
    recipe = plan.data.recipes[-1]
    _line(console, f"or with its images, too:    vlmconsole data make {recipe}")
    _line(console, f"                            vlmconsole gates freeze {name} --data {recipe}")
    _print_limits(console, plan)
    for text in power_lines(powers):
        _line(console, text)
    _line(console, f"{plan.generations.total} answers in all; images of {', '.join(plan.data.recipes)}")


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _print_limits(console: Console, plan: Plan) -> None:
    """What a plan is, its gates with their limits, its groups with their images."""
    from rich.table import Table

    _line(console, f"\n{plan.title}")
    _line(console, f"whose list: {plan.whose}")
    _line(console, f"before: {plan.before_adapter or plan.before} ({base_label(plan)})")
    gates = Table(box=None, pad_edge=False)
    for name in ("gate", "limit"):
        gates.add_column(name, no_wrap=name == "limit")
    for gate in plan.gates:
        gates.add_row(gate.name, gate.limit_text)
    console.print(gates)
    groups = Table(box=None, pad_edge=False)
    for name in ("group", "split", "images", "by hash"):
        groups.add_column(name, justify="right" if name in ("images", "by hash") else "left")
    for group in plan.groups:
        bound = len(plan.data.pictures.get(group.name, ()))
        groups.add_row(group.name, group.split, str(group.n), str(bound) if bound else "not bound")
    console.print(groups)


def _print(
    console: Console,
    listing: Listed,
    plan: Plan | None,
    powers: list[GatePower],
    others: list[Listed],
    broken: str | None,
) -> None:
    line = partial(_line, console)
    line(f"{listing.name} · frozen {moment(listing.frozen)}", "bold")
    line(f"sha {listing.sha256}")
    if listing.limits is not None:
        line(f"its limits: frozen {moment(listing.limits)}, sha {listing.limits_sha256[:12]}…")
    if broken:
        line(f"✗ the ledger is broken: {broken}", "bold red")
    if listing.fault:
        line(f"✗ {listing.fault}: {listing.path}", "bold red")
    for use in listing.runs:
        line(f"{use.run}: {f'{use.label} ({use.gates})' if use.verdict else f'not judged yet ({use.state})'}")
        if use.training:
            line(f"  {'! ' if use.late else ''}{use.training}", "yellow" if use.late else "")
    if not listing.runs:
        line("no run judged by it yet; evaluate with --set plan=" + listing.sha256[:12] + " is")
    if plan is not None:
        _print_limits(console, plan)
        for text in power_lines(powers):
            line(text)
        line(f"{many(listing.pictures, 'image')} of {', '.join(plan.data.digests or plan.data.recipes)}")
    line(listing.path)
    for other in others:
        line(f"another {other.name}: sha {other.sha256[:12]}…, frozen {moment(other.frozen)}", "dim")
