"""The last page of a report of several runs: every verdict in one table, and what may and may not be claimed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.evaluation.spread import by_seed, spread
from vlmconsole.gates.verdict import judge
from vlmconsole.ledger.chain import Ledger
from vlmconsole.reports.judged import is_planned
from vlmconsole.reports.outcome import outcome, reason
from vlmconsole.reports.parts import Column, Paragraph, Part, Section, Table
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.text.numbers import number, signed
from vlmconsole.text.plain import inert, one_line
from vlmconsole.text.signs import sign_of


def sections(runs: Sequence[RunFolder], places: Places, titles: Sequence[str]) -> list[Section]:
    """Verdicts, claims and what came out otherwise, each under its run's title; nothing where there is none."""
    ledger = Ledger(places.ledger)
    rows, marks = [], []
    parts: list[Part] = []
    for run, title in zip(runs, titles, strict=True):
        if not is_planned(run):
            continue
        verdict = judge(run, ledger)
        counts = verdict.counts
        freezing = verdict.freezing
        numbers = (str(counts[word]) for word in ("PASS", "FAIL", "CANNOT JUDGE"))
        rows.append([title, verdict.label, *numbers, freezing.text if freezing else "training not known", run.name])
        marks.append("bad" if verdict.verdict != "PASS" else "warn" if verdict.late else "")
        parts.append(Paragraph(f"{title}: may be claimed", verdict.claims.may or ["nothing"]))
        parts.append(Paragraph(f"{title}: may not be claimed", verdict.claims.may_not, "warn"))
    made = []
    if rows:
        heads = [
            Column("pass"),
            Column("fail"),
            Column("cannot judge"),
            Column("its plan was", False),
            Column("run", False),
        ]
        table = Table("", [Column("judged", False), Column("verdict", False), *heads], rows, marks)
        made.append(Section("Every verdict", [table]))
    made += _outcomes(runs, titles)
    note = "Exploratory: the same training with other seeds, over the same images. No frozen gate uses it."
    apart = [Paragraph("", _apart(group), note=note) for group in by_seed(runs, places)]
    if apart:
        made.append(Section("Between training seeds", apart))
    looked = [line for run, title in zip(runs, titles, strict=True) for line in _without_plan(run, title)]
    if looked:
        note = "No frozen plan: nothing is judged or claimed from these."
        made.append(Section("Compared without a plan", [Paragraph("", looked, note=note)]))
    broken = [
        f"{title}: {run.state().get('state')} ({inert(str(run.state().get('reason') or 'no reason kept'))})"
        for run, title in zip(runs, titles, strict=True)
        if run.state().get("state") in ("failed", "lost", "cancelled")
    ]
    if broken:
        made.append(Section("Unfinished runs", [Paragraph("", broken, "bad")]))
    return [*made, Section("Claims", parts)] if parts else made


def _outcomes(runs: Sequence[RunFolder], titles: Sequence[str]) -> list[Section]:
    """What measurements, probes, audits and first looks came to: a run that is done is not simply well."""
    rows, marks = [], []
    for run, title in zip(runs, titles, strict=True):
        word = "" if is_planned(run) else outcome(run)
        if not word:
            continue
        summary = run.read_json("summary.json")
        rows.append([title, word, reason(summary) if isinstance(summary, dict) else "", run.name])
        marks.append({"error": "bad", "warning": "warn"}.get(sign_of(word).tone, ""))
    if not rows:
        return []
    columns = [Column(head, False) for head in ("run", "came to", "why", "folder")]
    return [Section("Measurements and checks", [Table("", columns, rows, marks)])]


def _apart(runs: Sequence[RunFolder]) -> list[str]:
    """What the seeds' evaluations show side by side, or why they may not be put there."""
    names = ", ".join(run.name for run in runs)
    try:
        return [f"{len(runs)} seeds: {names}", *(group.sentence() for group in spread(runs))]
    except LabError as error:
        return [f"{names}: {error.message}"]


def _without_plan(run: RunFolder, title: str) -> list[str]:
    """One sentence for each group of a paired evaluation that no plan judged."""
    if is_planned(run) or run.job().get("kind") != "evaluate":
        return []
    summary = run.read_json("summary.json", {})
    groups = summary.get("groups") if isinstance(summary, dict) else None
    return [
        f"{title}, {one_line(name)}: {difference}"
        for name, group in (groups.items() if isinstance(groups, dict) else ())
        if (difference := _difference(group))
    ]


def _difference(group: Any) -> str:
    """The paired difference of a group's partial reward in words; "" where only one side was asked."""
    paired = group.get("paired") if isinstance(group, dict) else None
    if not isinstance(paired, dict) or not isinstance(paired.get("interval"), list) or len(paired["interval"]) != 2:
        return ""
    change, low, high = (number(value) for value in (paired.get("difference"), *paired["interval"]))
    if change is None or low is None or high is None:
        return ""
    words = "a gain here" if low > 0 else "a loss here" if high < 0 else "no difference is shown"
    return f"partial reward {signed(change)}, 95 % interval {signed(low)} … {signed(high)}: {words}"
