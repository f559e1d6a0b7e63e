"""Sections of runs that were evaluated, judged or audited: groups, gates, claims, flips, findings."""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from vlmconsole.evaluation.scores import score_lines
from vlmconsole.gates.figures import COLUMNS, figures
from vlmconsole.gates.measures import Measures
from vlmconsole.gates.sample_images import SampleImages
from vlmconsole.gates.samples import Sample, Side, read_side
from vlmconsole.gates.verdict import Judged, Verdict, judge
from vlmconsole.ledger.chain import Ledger
from vlmconsole.reports import svg
from vlmconsole.reports.parts import Column, Facts, Paragraph, Part, Pictures, ReportPlot, Section, Table, answer, flat
from vlmconsole.reports.parts import ReportImage as Shown
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.scoring.bounded import paired_difference
from vlmconsole.text.numbers import figure, percent, signed
from vlmconsole.text.plain import inert
from vlmconsole.vision.images import PictureError

MOST_WRONG = 4  # wrong answers of one group that come with their pictures
MOST_PICTURES = 32
PICTURE_BYTES = 512 * 1024
SHOWN_AS = ("image/png", "image/jpeg", "image/webp")
AS_COUNTS = "Counts are shown in words; the raw files hold every answer verbatim."
MOST_CHANGED = 60  # answers that are set side by side


def sections(run: RunFolder, places: Places, *, pictures: bool = True) -> list[Section]:
    """Return what of these there is of a run; a verdict only where a plan with gates lies in the folder.

    pictures: whether wrong answers come with their pictures, which are looked up in the lab's datasets.
    """
    before, after = run.file("before.jsonl"), run.file("after.jsonl")
    made: list[Section] = []
    if before.exists() or after.exists():
        sides = read_side(before), read_side(after)
        if is_planned(run):
            verdict = judge(run, Ledger(places.ledger))
            made += _verdict(verdict)
        else:
            made += _score(run)
            both = before.exists() and after.exists()
            made.append(Section("Before and after", _groups(*sides)) if both else Section("Answers", _one(*sides)))
        changed = _changed(*sides)
        if changed:
            made.append(Section("Answers that changed", changed))
        if pictures:
            made += _wrong(run, places, *sides)
    audit = run.read_json("audit.json")
    if isinstance(audit, dict):
        made.append(Section("Audit", _audit(audit)))
    return made


def _score(run: RunFolder) -> list[Section]:
    """What the evaluation measured, in the sentences of its end."""
    summary = run.read_json("summary.json")
    lines = score_lines(summary) if isinstance(summary, dict) else []
    return [Section("Score", [Paragraph("", [inert(line) for line in lines])])] if lines else []


def is_planned(run: RunFolder) -> bool:
    """Return whether the run was made under a gate plan (a sweep's plan.json is another thing)."""
    plan = run.read_json("plan.json")
    return isinstance(plan, dict) and "gates" in plan


def _verdict(verdict: Verdict) -> list[Section]:
    freezing = verdict.freezing
    counts = verdict.counts
    summary = f"{counts['PASS']} pass, {counts['FAIL']} fail, {counts['CANNOT JUDGE']} cannot be judged"
    facts = [("verdict", verdict.label), ("gates", summary)]
    if verdict.plan is not None:
        facts += [("plan", verdict.plan.name), ("before", verdict.plan.before)]
    if verdict.frozen is not None:
        facts.append(("SHA-256 of the frozen plan", verdict.frozen.sha256))
    if freezing is not None:
        facts.append(("the plan was", freezing.text))
    parts: list[Part] = [Facts("", facts)]
    if verdict.problems:
        lines = [f"{problem.group or 'the whole run'}: {problem.text}" for problem in verdict.problems]
        parts.append(Paragraph("Missing evidence", lines, "bad"))
    if verdict.remarks:
        parts.append(Paragraph("Remarks", verdict.remarks, "warn"))
    if verdict.gates:
        parts.append(_gates(verdict.gates))
    made = [Section(f"Verdict: {verdict.label}", parts)]
    claims = verdict.claims
    made.append(
        Section(
            "Claims",
            [
                Paragraph("May be claimed", claims.may or ["nothing"]),
                Paragraph("May not be claimed", claims.may_not, "warn"),
            ],
        )
    )
    if verdict.measures:
        made.append(Section("Groups", _measures(verdict.measures)))
    return made


def _gates(gates: Sequence[Judged]) -> Table:
    heads = ("limit", *COLUMNS[:-1], "difference, 95 % interval")
    columns = [Column("gate", False), *(Column(head) for head in heads), Column("verdict", False), Column("why", False)]
    rows = []
    for gate in gates:
        why = "; ".join([gate.why, *gate.remarks] if gate.why else gate.remarks)
        rows.append([gate.gate.name, gate.limit_text, *figures(gate).values(), gate.verdict, why])
    marks = ["" if gate.verdict == "PASS" else "bad" for gate in gates]
    return Table(
        "Gates, failing ones first",
        columns,
        rows,
        marks,
        "Limits are on point estimates and inclusive; a lower bound must lie above its limit.",
    )


def _measures(measures: dict[str, Measures]) -> list[Part]:
    heads = ("n", "all correct before, %", "after, %", "partial before", "after", "better", "worse", "McNemar p")
    columns = [Column("group", False), *(Column(head) for head in heads)]
    rows, lines = [], []
    for name, measure in measures.items():
        interval = measure.interval
        rows.append(
            [name, str(measure.n), *(percent(float(share), unit="") for share in measure.all_correct),
             f"{float(measure.partial[0]):.4f}", f"{float(measure.partial[1]):.4f}",
             str(measure.flips.wins), str(measure.flips.losses), figure(measure.flips.p)]
        )  # fmt: skip
        lines.append(_range(name, interval.low, interval.difference, interval.high))
    title = "Difference of partial reward, 95 % interval"
    drawn = ReportPlot(
        title, svg.ranges(title, lines, "after − before"), "Paired bootstrap over images, not trainings."
    )
    return [Table("Groups", columns, rows), drawn]


def _range(name: str, low: float, middle: float, high: float) -> svg.Range:
    return svg.Range(name, low, middle, high, f"{signed(middle)} ({signed(low)} to {signed(high)})")


def _groups(before: Side, after: Side) -> list[Part]:
    """Without a plan: the figures of each group, and no verdict."""
    by: dict[str, list[tuple[Sample, Sample]]] = defaultdict(list)
    for name, sample in before.samples.items():
        other = after.samples.get(name)
        if other is not None:
            by[sample.group].append((sample, other))
    problems = [*before.problems, *after.problems]
    made: list[Part] = [Paragraph("No verdict", ["This run has no gate plan."], "warn")]
    if problems:
        made.append(Paragraph("Missing evidence", problems, "bad"))
    rows, lines = [], []
    for group, some in sorted(by.items()):
        n = len(some)
        partial = [[s[side].partial for s in some] for side in (0, 1)]
        rows.append(
            [group, str(n), *(percent(sum(s[side].all_correct for s in some) / n, unit="") for side in (0, 1)),
             *(f"{sum(values) / n:.4f}" for values in partial)]
        )  # fmt: skip
        if n > 1:
            interval = paired_difference(*partial)
            lines.append(_range(group, interval.low, interval.difference, interval.high))
    if rows:
        heads = ("n", "all correct before, %", "after, %", "partial before", "after")
        made.append(Table("Groups", [Column("group", False), *(Column(head) for head in heads)], rows))
    if lines:
        title = "Difference of partial reward, 95 % interval"
        made.append(ReportPlot(title, svg.ranges(title, lines, "after − before")))
    return made


def _one(before: Side, after: Side) -> list[Part]:
    """A run that asked one model only."""
    side = before if before.samples or not after.samples else after
    by: dict[str, list[Sample]] = defaultdict(list)
    for sample in side.samples.values():
        by[sample.group].append(sample)
    rows = [
        [group, str(len(some)), percent(sum(s.all_correct for s in some) / len(some), unit=""),
         figure(sum(s.partial for s in some) / len(some), 4), str(sum(not s.valid for s in some)),
         str(sum(not s.http_ok for s in some))]
        for group, some in sorted(by.items())
    ]  # fmt: skip
    heads = ("n", "all correct, %", "partial", "invalid answers", "failed requests")
    columns = [Column("group", False), *(Column(head) for head in heads)]
    made: list[Part] = [
        Table(f"Groups of {side.name}", columns, rows, note="One model only: there is no difference to judge.")
    ]
    if side.problems:
        made.append(Paragraph("Missing evidence", side.problems, "bad"))
    return made


def _changed(before: Side, after: Side) -> list[Part]:
    moved = [
        (first, after.samples[name])
        for name, first in before.samples.items()
        if name in after.samples and after.samples[name].partial != first.partial
    ]
    if not moved:
        return []
    moved.sort(key=lambda pair: pair[1].partial - pair[0].partial)
    columns = [Column(head, False) for head in ("image", "group", "truth", "before", "after")]
    columns += [Column("reward before"), Column("after")]
    rows = [
        [first.id, first.group, answer(first.truth), answer(first.answer), answer(other.answer),
         figure(first.reward), figure(other.reward)]
        for first, other in moved[:MOST_CHANGED]
    ]  # fmt: skip
    marks = ["bad" if other.partial < first.partial else "" for first, other in moved[:MOST_CHANGED]]
    worse = sum(other.partial < first.partial for first, other in moved)
    note = f"{worse} worse, {len(moved) - worse} better, worse ones first. {AS_COUNTS}"
    if len(moved) > MOST_CHANGED:
        note += f" {len(moved) - MOST_CHANGED} more in before.jsonl and after.jsonl."
    return [Table("", columns, rows, marks, note)]


def _wrong(run: RunFolder, places: Places, before: Side, after: Side) -> list[Section]:
    """Wrong answers with their pictures: the worst of each group, so that a person can judge them one by one."""
    last = after if after.samples else before
    by: dict[str, list[Sample]] = defaultdict(list)
    for sample in last.samples.values():
        if not sample.all_correct:
            by[sample.group].append(sample)
    images, missing = SampleImages(places), 0
    chosen: list[Shown] = []
    for some in by.values():
        for sample in sorted(some, key=lambda candidate: (candidate.partial, candidate.id))[:MOST_WRONG]:
            if len(chosen) >= MOST_PICTURES:
                break
            try:
                picture = images.image(sample, run.path)
            except (PictureError, OSError):
                missing += 1
                continue
            if picture.mime not in SHOWN_AS or len(picture.data) > PICTURE_BYTES:
                continue
            first = before.samples.get(sample.id)
            caption = f"{sample.group}, {sample.id}\ntruth {answer(sample.truth)}"
            if first is not None and last is after:
                caption += f"\nbefore {answer(first.answer)}"
            caption += f"\n{'after' if last is after else 'answer'} {answer(sample.answer)}"
            url = f"data:{picture.mime};base64,{base64.b64encode(picture.data).decode()}"
            chosen.append(Shown(url, inert(caption)))
    if not chosen and not missing:
        return []
    wrong = sum(map(len, by.values()))
    note = f"{len(chosen)} of {wrong} wrong answers, the worst of each group."
    note += f" {missing} images are no longer in any dataset of this lab." if missing else ""
    return [Section("Wrong answers", [Pictures("", chosen, note)])]


def _audit(audit: dict[str, Any]) -> list[Part]:
    """Findings as a table, whatever else the file holds as facts."""
    listed = next((v for key in ("findings", "checks") if isinstance(v := audit.get(key), list)), [])
    findings = [entry for entry in listed if isinstance(entry, dict)]
    made: list[Part] = []
    if findings:
        rows = [
            [str(entry.get("name", "")), str(entry.get("state", "")), str(entry.get("text", ""))] for entry in findings
        ]
        marks = ["" if entry.get("state") == "ok" else "bad" for entry in findings]
        columns = [Column("check", False), Column("state", False), Column("finding", False)]
        made.append(Table("Checks", columns, rows, marks))
    rest = {key: value for key, value in audit.items() if key not in ("findings", "checks")}
    return [*made, Facts("", flat(rest))] if rest else made
