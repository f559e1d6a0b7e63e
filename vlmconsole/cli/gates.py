"""`vlmconsole gates`: freeze a plan, judge a run by the plan frozen before it, look at plan and evidence."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlmconsole.cli import gate_notes
from vlmconsole.cli.common import CANNOT_JUDGE, FAILED, OK, USAGE, emit, fail, say, state
from vlmconsole.cli.gate_plan import base_label, is_plan, power_lines, show_plan, waiting
from vlmconsole.errors import LabError
from vlmconsole.system.typed_paths import named, new_file
from vlmconsole.text.counts import many
from vlmconsole.text.numbers import figure
from vlmconsole.text.signs import sign_of
from vlmconsole.text.times import moment

if TYPE_CHECKING:
    from rich.console import Console

    from vlmconsole.gates.frozen_list import Listed
    from vlmconsole.gates.trained import Freezing
    from vlmconsole.gates.verdict import Verdict
    from vlmconsole.runs.folder import RunFolder

CODES = {"PASS": OK, "FAIL": FAILED, "CANNOT JUDGE": CANNOT_JUDGE}


def register(app: typer.Typer) -> None:
    """Add `gates` to the command tree."""
    gates = typer.Typer(help="Gates: freeze a plan, judge a run, show the evidence.", no_args_is_help=True)
    app.add_typer(gates, name="gates")
    gate_notes.register(gates)

    @gates.command("init")
    def init(
        dataset: str = typer.Argument(..., help="Dataset: a name or folder with a test split"),
        out: str = typer.Option(None, "--out", metavar="FILE", help="Write here; default: DATASET-gates.toml"),
    ) -> None:
        """Write a first plan for a dataset, to be edited: its test splits as groups, limits left open, a guard."""
        from vlmconsole.data.dataset import manifest_digest, read_manifest
        from vlmconsole.gates.bases import measured_on
        from vlmconsole.gates.draft import draft, draft_groups
        from vlmconsole.runs.folder import write_for_user

        folder = _dataset(dataset)
        manifest = read_manifest(folder)
        name = str(manifest["name"])
        path = new_file(out or f"{name}-gates.toml")
        if path.exists():
            fail(f"{path} exists already.", "Edit it, or name another file: --out FILE.", USAGE, code="file-exists")
        groups = draft_groups(folder)
        known = measured_on(
            name, manifest_digest(manifest), {group.name: group.split for group in groups}, state.lab.places
        )
        try:
            write_for_user(path, draft(name, groups, known))
        except OSError as error:
            fail(f"{path} cannot be written: {error.strerror}", exit_status=FAILED)
        value = {
            "path": str(path),
            "dataset": name,
            "groups": [{"name": each.name, "split": each.split, "n": each.n, "scorer": each.scorer} for each in groups],
            "base": {
                group: {"score": share.shares.get("partial"), "run": share.source} for group, share in known.items()
            },
        }
        text = f"{path}\n{many(len(groups), 'group')}; limits left open are marked with #: fill them in, then\n"
        emit(value, text + f"vlmconsole gates freeze {path.name} --data {name} --base MODEL")

    @gates.command("freeze")
    def freeze(
        plan: str = typer.Argument(..., help="Plan: a shipped one or a TOML file"),
        data: Annotated[
            list[str] | None,
            typer.Option("--data", metavar="DIR", help="Bind to a dataset (name or folder); repeatable"),
        ] = None,
        run: str = typer.Option(None, "--run", help="Freeze as this run's plan, before its first sample"),
        before: str = typer.Option(None, "--before", help="Adapter on the before side"),
        base: str = typer.Option(
            None, "--base", metavar="MODEL", help="Base model whose weights are bound: a folder or name"
        ),
        measured: Annotated[
            list[str] | None,
            typer.Option("--from", metavar="RUN", help="Evaluation that tells the base's scores; default: the newest"),
        ] = None,
    ) -> None:
        """Write a plan canonically, its hash in the ledger. A frozen plan is never edited: a changed one is new.

        Prints each gate's power: the smallest true change it sees with 80 % chance; vacuous and unreachable gates.
        """
        from vlmconsole.gates.bases import bases
        from vlmconsole.gates.binding import bind, freeze_for_lab, freeze_for_run
        from vlmconsole.gates.plan import load_plan
        from vlmconsole.gates.power import power, refuse_weak_intervals
        from vlmconsole.ledger.chain import Ledger

        places = state.lab.places
        ledger = Ledger(places.ledger)
        chosen = load_plan(plan)
        refuse_weak_intervals(chosen)
        if data or before or base:
            from vlmconsole.evaluation.resolve import NamedAdapter, base_of

            folders = [_dataset(name) for name in data or chosen.data.recipes[-1:]]
            weights = base_of(base) if base else None
            start = NamedAdapter(before or "", places).identity
            chosen = bind(chosen, folders, before_adapter=start, base_sha256=weights)
        if run is not None:
            frozen = freeze_for_run(chosen, _run(run), places.home, ledger)
        else:
            if chosen.template_sha256:
                freeze_for_lab(chosen.template(), places.home, ledger)
            frozen = freeze_for_lab(chosen, places.home, ledger)
        powers = power(chosen, bases(chosen, places, [_run(name).name for name in measured or ()]))
        bound = sum(len(rows) for rows in chosen.data.pictures.values())
        value = {
            "plan": chosen.name,
            "sha256": frozen.sha256,
            "frozen": frozen.t,
            "path": str(frozen.path),
            "gates": len(chosen.gates),
            "pictures": bound,
            "base_sha256": chosen.base_sha256,
            "power": [gate.to_json() for gate in powers],
        }
        pictures = (
            f"{many(bound, 'image')} by hash" if bound else f"no images yet (recipe {', '.join(chosen.data.recipes)})"
        )
        text = f"{chosen.name} frozen {moment(frozen.t)}, sha {frozen.sha256[:12]}…, "
        text += f"{many(len(chosen.gates), 'gate')}, {pictures}, {base_label(chosen)}"
        text += f"\n{frozen.path}\nAn evaluation is judged by it with --set plan={frozen.sha256[:12]}"
        text += f" (vlmconsole eval DATASET --adapter X --against base --plan {frozen.sha256[:12]})" if bound else ""
        emit(value, "\n".join([text, *power_lines(powers)]))

    @gates.command("check")
    def check(
        run: str = typer.Argument(..., help="Run: a name or part of one, a folder, or `last`"),
        junit: str = typer.Option(None, "--junit", metavar="FILE", help="Also write JUnit XML to this file"),
    ) -> None:
        """Judge a run by its frozen plan. Exit codes: 0 PASS, 1 FAIL, 3 CANNOT JUDGE."""

        try:
            path = new_file(junit) if junit else None
            folder, verdict = _judge(run)
        except LabError as error:  # never 1, which says that the gates failed
            fail(error.message, error.hint, exit_status=USAGE, code=error.code)
        if path is not None:
            from vlmconsole.gates.junit import junit as as_xml
            from vlmconsole.runs.folder import write_for_user

            try:
                write_for_user(path, as_xml(verdict))
            except OSError as error:
                fail(f"{junit} cannot be written: {error.strerror}", "The run was not judged.", exit_status=USAGE)
        _remember(verdict, folder)
        value = {**verdict.to_json(), "training": verdict.freezing.to_json() if verdict.freezing else None}
        emit(value, lambda console: _print_verdict(console, verdict, verdict.freezing))
        raise typer.Exit(CODES[verdict.verdict])

    @gates.command("list")
    def list_() -> None:
        """Every frozen plan, newest first: its hash, when it was frozen, what it judged, and against which training."""
        from vlmconsole.gates.frozen_list import listed
        from vlmconsole.ledger.chain import Ledger

        places = state.lab.places
        chain = Ledger(places.ledger).read()
        plans = listed(places, chain)
        others = waiting(plan.name for plan in plans)
        value = {"plans": [plan.to_json() for plan in plans], "not_frozen": others, "ledger_broken": chain.broken}
        emit(value, lambda console: _print_list(console, plans, others, chain.broken))

    @gates.command("show")
    def show(
        run: str = typer.Argument(
            ...,
            metavar="RUN|PLAN",
            help="Run (a name, part of it, or folder), plan name, or hash of a frozen plan",
        ),
    ) -> None:
        """The plan, its hash and times, groups with wins and losses, earlier verdicts, and what may be claimed.

        Of a plan: its limits, when it was frozen and before which training, its images by group. One that was
        never frozen is shown, too, with how to freeze it.
        """
        from vlmconsole.ledger.chain import Ledger

        code = show_plan(run)
        if code is not None:
            raise typer.Exit(code)
        folder, verdict = _judge(run)
        freezing = verdict.freezing
        entries = Ledger(state.lab.places.ledger).read().entries
        earlier = [e for e in entries if e.get("kind") == "verdict" and e.get("run") == folder.name]
        value = {
            **verdict.to_json(),
            "training": freezing.to_json() if freezing else None,
            "path": str(folder.path),
            "frozen_plan": verdict.plan.value() if verdict.plan else None,
            "verdicts": [{key: e[key] for key in ("t", "plan", "verdict", "gates")} for e in earlier],
        }
        emit(value, lambda console: _print_all(console, verdict, freezing, value["verdicts"]))


def _run(name: str) -> RunFolder:
    from vlmconsole.runs.folder import NoRunError, RunFolder, find_run

    with contextlib.suppress(OSError):  # a name that is too long for one
        if (Path(name) / "plan.json").exists() or (Path(name) / "before.jsonl").exists():
            return RunFolder(Path(name).absolute())
    try:
        return find_run(state.lab.places.runs, name)
    except NoRunError:
        if is_plan(name):
            hint = f"vlmconsole gates show {name} shows the plan; vlmconsole gates list, the runs judged by each."
            fail(f"“{name}” is a plan; give a run.", hint, exit_status=USAGE)
        raise


def _dataset(name: str) -> Path:
    path, ours = named(name), state.lab.places.datasets / name
    # As everywhere: a bare name is the lab's dataset, ./NAME the folder here.
    folder = ours if ("/" not in name and ours.is_dir()) or not path.is_dir() else path.absolute()
    if not folder.is_dir():
        fail(
            f"No dataset “{name}” here.",
            f"`vlmconsole data make {name}` makes a shipped one.",
            exit_status=USAGE,
        )
    return folder


def _judge(name: str) -> tuple[RunFolder, Verdict]:
    from vlmconsole.gates.verdict import judge
    from vlmconsole.ledger.chain import Ledger

    run = _run(name)
    return run, judge(run, Ledger(state.lab.places.ledger))


def _remember(verdict: Verdict, run: RunFolder) -> None:
    from vlmconsole.gates.binding import record
    from vlmconsole.ledger.chain import Ledger

    try:
        record(verdict, run, Ledger(state.lab.places.ledger))
    except OSError as error:
        say(f"note: this verdict could not be added to the ledger ({error.strerror})")


def _style(label: str) -> str:
    """The colour of a verdict as it is labelled: one with a reservation (a PASS by a late plan) is no plain one."""
    return sign_of(label).rich if label else ""


def _print_verdict(console: Console, verdict: Verdict, freezing: Freezing | None) -> None:
    from rich.table import Table
    from rich.text import Text

    from vlmconsole.gates.figures import figures

    counts = verdict.counts
    console.print(verdict.label, style=_style(verdict.label), end="")
    tally = f"  {counts['PASS']} pass · {counts['FAIL']} fail · {counts['CANNOT JUDGE']} cannot judge"
    console.print(tally if verdict.gates else "", markup=False)
    if verdict.plan and verdict.frozen:
        console.print(
            f"{verdict.plan.name} · frozen {moment(verdict.frozen.t)} · sha {verdict.frozen.sha256[:12]}…", markup=False
        )
    if freezing:
        style = "yellow" if freezing.late else "dim"
        console.print(f"{'!' if freezing.late else '·'} {freezing.text}", style=style, markup=False, soft_wrap=True)
    for problem in verdict.problems[:12]:
        where = f"{problem.group}: " if problem.group else ""
        console.print(f"! {where}{problem.text}", style="yellow", markup=False, soft_wrap=True)
    if len(verdict.problems) > 12:
        console.print(f"! and {len(verdict.problems) - 12} more (--json shows all)", style="yellow")
    wide = console.width >= 100  # else before, after and the interval stay in --json
    columns = ["before", "after", "measured", "margin"] if wide else ["measured", "margin"]
    table = Table(box=None, pad_edge=False)
    for name in ("", "gate", "limit", *columns, *(["gain, 95 % interval"] if wide else []), "verdict"):
        table.add_column(name, justify="right" if name in columns else "left", no_wrap=name != "gate")
    for judged in verdict.gates:
        shown_as = sign_of(judged.verdict)
        row = figures(judged)
        shown = [*[row[name] for name in columns], *([row["interval"]] if wide else [])]
        mark, word = (Text(text, style=shown_as.rich) for text in (shown_as.mark, judged.verdict))
        table.add_row(mark, judged.gate.name, judged.limit_text, *shown, word)
    if verdict.gates:
        console.print(table)
    for judged in verdict.gates:
        notes = [judged.why] if judged.verdict == "CANNOT JUDGE" and judged.measured is not None else []
        for note in [*notes, *judged.remarks]:
            console.print(f"· {judged.gate.name}: {note}", style="dim", markup=False, soft_wrap=True)
    for remark in verdict.remarks:
        console.print(f"· {remark}", style="dim", markup=False, soft_wrap=True)


def _print_list(console: Console, plans: list[Listed], others: list[str], broken: str | None) -> None:
    def line(text: str, style: str = "") -> None:
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    if broken:
        line(f"✗ the ledger is broken: {broken}", "bold red")
    if not plans:
        line("No frozen plans yet: vlmconsole gates freeze PLAN, or run freeze-gates.")
        line("gates show PLAN shows what one would judge.")
    for plan in plans:
        limits = f" (its limits {moment(plan.limits)})" if plan.limits is not None else ""
        base = f"base {plan.base_sha256[:12]}…" if plan.base_sha256 else "base not bound"
        about = (
            f"{many(plan.gates, 'gate')}, {many(plan.pictures, 'image')}, {base}"
            if plan.pictures
            else f"{many(plan.gates, 'gate')}, limits only"
        )
        line(f"{plan.name}  {plan.sha256[:12]}  frozen {moment(plan.frozen)}{limits} · {about}")
        if plan.fault:
            line(f"  ✗ {plan.fault}: {plan.path}", "bold red")
        for use in plan.runs:
            word = f"{use.label} ({use.gates})" if use.verdict else f"not judged yet ({use.state})"
            line(f"  {word}  {use.run}", _style(use.label))
            if use.training:
                line(f"    {'! ' if use.late else ''}{use.training}", "yellow" if use.late else "dim")
        if not plan.runs:
            line("  no run judged by it yet", "dim")
    if others:
        line(f"shipped and not frozen here: {', '.join(others)}", "dim")


def _print_all(console: Console, verdict: Verdict, freezing: Freezing | None, earlier: list[dict[str, Any]]) -> None:
    from rich.table import Table

    _print_verdict(console, verdict, freezing)
    if verdict.plan:
        console.print(f"\n{verdict.plan.title}", markup=False, soft_wrap=True)
        console.print(f"whose list: {verdict.plan.whose}", markup=False, soft_wrap=True)
        console.print(f"before: {verdict.plan.before} ({base_label(verdict.plan)})", markup=False, soft_wrap=True)
    if verdict.measures:
        table = Table(box=None, pad_edge=False)
        for name in ("group", "n", "wins", "losses", "McNemar p", "partial before", "after", "valid"):
            table.add_column(name, justify="left" if name == "group" else "right")
        for name, m in verdict.measures.items():
            first, second = (f"{float(x):.4f}" for x in m.partial)
            flips = (str(m.n), str(m.flips.wins), str(m.flips.losses), f"{figure(m.flips.p)}")
            table.add_row(name, *flips, first, second, f"{m.valid[0]} → {m.valid[1]}")
        console.print(table)
    for title, lines in (("may be claimed", verdict.claims.may), ("may not", verdict.claims.may_not)):
        for line in lines:
            console.print(f"{title}: {line}", markup=False, soft_wrap=True)
    for entry in earlier:
        console.print(f"{moment(entry['t'])}  {entry['verdict']}  ({entry['gates']})", style="dim", markup=False)
