"""One report of one run or of several: a single HTML file without scripts and without anything from the network."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from vlmconsole import __version__
from vlmconsole.errors import LabError
from vlmconsole.ledger.chain import MANIFEST, Ledger
from vlmconsole.reports import claimed, judged, learned, measured, tuned
from vlmconsole.reports.outcome import outcome
from vlmconsole.reports.pages import page_template
from vlmconsole.reports.parts import Facts, Paragraph, Part, Section, flat, shown
from vlmconsole.runs import logfile
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.live_view import RunStory
from vlmconsole.runs.places import Places
from vlmconsole.text.numbers import UNKNOWN
from vlmconsole.text.plain import inert, one_line
from vlmconsole.text.signs import sign_of

MOST_FILES = 200
LOG_LINES = 40
AS_TYPED = "Names as used by --set."
SEALS = {
    "intact": "Sealed and intact",
    "changed": "CHANGED since it was sealed",
    "missing": "INCOMPLETE",
    "not sealed": "Not sealed",
    "ledger broken": "The ledger is broken",
}


@dataclass(frozen=True)
class ReportFile:
    """One raw file: bytes, its hash as sealed, and a link relative to the report ("" when the report has no place)."""

    name: str
    size: int
    sha: str
    link: str


@dataclass(frozen=True)
class Chapter:
    """One run in the report."""

    name: str
    title: str
    state: str
    reason: str
    good: bool
    intact: bool
    seal: str
    verdict: str
    held: bool  # whether the verdict is a good one
    sections: Sequence[Section]
    files: Sequence[ReportFile]
    more_files: int


def html(
    runs: Sequence[RunFolder],
    places: Places,
    *,
    beside: Path | None = None,
    now: float | None = None,
    absent: Sequence[str] = (),
    title: str = "",
    labels: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return the report on `runs` as one page.

    beside: the file it will be written to, so that its links reach the raw files. now: wall time, seconds. absent:
    what should be in it and has no run; the page says so. title: of the page. labels: names of runs, by their folders,
    such as the steps of a flow. Raises LabError when the extra for reports is not installed.
    """
    template = page_template("page.html")
    chapters = [chapter(run, places, beside, labels.get(str(run.path), "")) for run in runs]
    title = inert(title) or (chapters[0].title if len(chapters) == 1 else f"{len(chapters)} runs")
    made = time.strftime("%-d %B %Y, %H:%M %Z", time.localtime(now))
    last = (
        guarded("judged", runs[0], lambda: claimed.sections(runs, places, [chapter.title for chapter in chapters]))
        if len(runs) > 1
        else []
    )
    page: str = template.render(
        title=title, made=made, version=__version__, runs=chapters, last=last, absent=[inert(name) for name in absent]
    )
    # A lone surrogate of a file name is no UTF-8.
    return page.encode("utf-8", "replace").decode("utf-8")


def chapter(run: RunFolder, places: Places, beside: Path | None = None, label: str = "") -> Chapter:
    """Return everything of one run. A damaged file costs its own section, with the damage said, never the report."""
    job, state, ledger = run.job(), run.state(), Ledger(places.ledger)
    seal = ledger.verify(run)
    sections: list[Section] = [*guarded("verdict", run, lambda: judged.sections(run, places))]
    sections += guarded("measurement", run, lambda: measured.sections(run))
    sections += guarded("tuning", run, lambda: tuned.sections(run))
    sections += guarded("training", run, lambda: learned.sections(run))
    sections += guarded("settings", run, lambda: settings(run, job, sections))
    listed, more = _files(run, beside)
    good = state.get("state") in ("done", "running", "queued", "starting")
    verdict = next((section.title for section in sections if section.title.startswith("Verdict")), "") or _judged(run)
    return Chapter(
        run.name,
        (f"{one_line(label)}: " if label else "") + one_line(job.get("title") or job.get("preset") or run.name),
        one_line(state.get("state") or "state unknown", 40),
        inert(str(state.get("reason") or "")),
        good,
        seal.status == "intact",
        f"{SEALS[seal.status]}: {seal.why}.",
        verdict.lower() if verdict.startswith(("Verdict", "Audit")) else verdict,
        verdict.lower().endswith(": pass") or sign_of(verdict).tone == "accent",
        sections,
        listed,
        more,
    )


def _judged(run: RunFolder) -> str:
    """What an audit, a measurement, a probe or a smoke came to; "" for another run."""
    audit = run.read_json("audit.json")
    word = audit.get("verdict") if isinstance(audit, dict) else None
    if isinstance(word, str):
        return f"Audit: {one_line(word, 20)}"
    return outcome(run)


def guarded(what: str, run: RunFolder, read: Any) -> list[Section]:
    """Return the sections, or one that says what is wrong with the files they are made of."""
    try:
        sections: list[Section] = read()
    except (LabError, OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        message = f"The {what} files of this run are damaged: {type(error).__name__}: {one_line(error, 300)}."
        return [Section("Damaged", [Paragraph("", [message, f"The folder is {run.path}."], "bad")])]
    return sections


def settings(run: RunFolder, job: dict[str, Any], before: Sequence[Section]) -> list[Section]:
    """Return how the run was asked for, its summary and conditions where no section of `before` has them, what it
    told.
    """
    summary, conditions = run.read_json("summary.json"), run.read_json("conditions.json")
    parts: list[Part] = [Facts("As queued", [("kind", shown(job.get("kind"))), *_set(job.get("spec"))], AS_TYPED)]
    if summary is not None and not any(section.title == "What was measured" for section in before):
        parts.append(Facts("Summary", flat(summary)))
    if conditions is not None and not any(section.title in ("Conditions", "Cold and warm pairs") for section in before):
        parts.append(Facts("Conditions", flat(conditions)))
    made = [Section("Settings and summary" if len(parts) > 1 else "Settings", parts)]
    live = RunStory(run).read()
    notes = [f"{note.level}: {inert(note.text)}" if note.level != "info" else inert(note.text) for note in live.notes]
    parts = [Paragraph("Notes", notes)] if notes else []
    if live.bad:
        parts.append(Paragraph("", [f"{live.bad} lines of events.jsonl are unreadable."], "warn"))
    if run.state().get("state") in ("failed", "lost", "cancelled"):
        page = logfile.tail(logfile.newest(run.log))
        lines = [logfile.shown(line) for line in page.lines[-LOG_LINES:]]
        parts += [Paragraph("End of the log", lines, "log")] if lines else []
    return [*made, Section("Log", parts)] if parts else made


def _set(spec: Any) -> list[tuple[str, str]]:
    """The settings that have a value."""
    return [row for row in flat(spec, raw=True) if row[1] != UNKNOWN] if isinstance(spec, dict) else []


def _files(run: RunFolder, beside: Path | None) -> tuple[list[ReportFile], int]:
    sealed = run.read_json(MANIFEST, {})
    known = sealed.get("files", {}) if isinstance(sealed, dict) else {}
    listed = []
    for path in sorted(run.path.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        name = path.relative_to(run.path).as_posix()
        entry = known.get(name) if isinstance(known, dict) else None
        sha = str(entry.get("sha256", "")) if isinstance(entry, dict) else ""
        link = quote(os.fsencode(os.path.relpath(path, beside.parent))) if beside is not None else ""
        listed.append(ReportFile(inert(name), path.stat().st_size, inert(sha), link))
    return listed[:MOST_FILES], max(0, len(listed) - MOST_FILES)
