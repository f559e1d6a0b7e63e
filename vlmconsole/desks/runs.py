"""The runs of a lab as lines of a table: read again only where their files moved, sealed ones checked bit by bit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vlmconsole.ledger import chain as ledger
from vlmconsole.ledger.chain import Ledger
from vlmconsole.reports.outcome import headline, outcome
from vlmconsole.runs.folder import FINAL, RunFolder, list_runs
from vlmconsole.runs.places import Places
from vlmconsole.text.numbers import number
from vlmconsole.text.plain import one_line

#: seals: what is known of a run's files without hashing them, and after it
OPEN, SEALED = "open", "sealed"
CHECK_S = 0.25  # seconds of hashing after which a look begins no other run
CHECK_BYTES = 64 * 1024 * 1024  # runs with more than this are verified only when asked for
STAMPED = ("job.json", "state.json", "summary.json", "manifest.json")
Stamp = tuple[int, ...]


@dataclass(frozen=True)
class RunLine:
    """One run. `seal` is open, sealed (not looked at yet) or what verifying said; `why` is its sentence.

    `verdict` is the run's own word ("" where nothing was judged), `said` its figure in a few words, `wrong` what
    is damaged about the folder.
    """

    name: str
    path: Path
    preset: str
    kind: str
    title: str
    state: str
    reason: str
    started: float | None
    ended: float | None
    verdict: str
    said: str
    wrong: str
    seal: str = OPEN
    why: str = ""

    @property
    def words(self) -> str:
        """What a filter looks at."""
        return f"{self.name} {self.kind} {self.title} {self.state} {self.verdict} {self.seal}".lower()

    @property
    def bad(self) -> bool:
        return self.state in ("failed", "lost") or bool(self.wrong) or self.seal in ("changed", "missing")


@dataclass(frozen=True)
class RunsBoard:
    """The lines that the filter leaves, newest first; `total` are all, `failed` those that did not end well."""

    lines: tuple[RunLine, ...] = ()
    total: int = 0
    failed: int = 0
    running: int = 0
    ledger: str = ""  # what is wrong with the ledger, if anything


class Shelf:
    """Reads the runs of one lab. Not for several threads."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self._known: dict[str, tuple[Stamp, RunLine]] = {}
        self._seals: dict[str, tuple[Stamp, ledger.SealVerdict]] = {}
        self._chain = ledger.Chain()
        self._chain_stamp: Stamp = (-1,)

    def read(self, words: str = "") -> RunsBoard:
        """Return all runs whose name, kind, title, state, verdict or seal hold every one of `words`."""
        self._read_chain()
        sealed = {e.get("run") for e in self._chain.entries if e.get("kind") == "sealed"}
        runs = list_runs(self.places.runs)
        lines = [self._line(run, run.name in sealed) for run in runs]
        for gone in set(self._known) - {run.name for run in runs}:
            self._known.pop(gone)
            self._seals.pop(gone, None)
        self._check(runs, lines)
        wanted = words.lower().split()
        return RunsBoard(
            tuple(line for line in lines if all(word in line.words for word in wanted)),
            len(lines),
            sum(line.state in ("failed", "lost") for line in lines),
            sum(line.state in ("running", "starting") for line in lines),
            self._chain.broken or "",
        )

    def verify(self, name: str) -> ledger.SealVerdict:
        """Hash this run's files now, whatever is remembered of it."""
        self._read_chain()
        run = RunFolder(self.places.runs / name)
        verdict = Ledger(self.places.ledger).verify(run, self._chain)
        self._seals[name] = (moved(run), verdict)
        return verdict

    def _read_chain(self) -> None:
        stamp = stamp_of([self.places.ledger])
        if stamp != self._chain_stamp:
            self._chain_stamp = stamp
            self._chain = Ledger(self.places.ledger).read()

    def _line(self, run: RunFolder, sealed: bool) -> RunLine:
        stamp = stamp_of([run.file(name) for name in STAMPED])
        known = self._known.get(run.name)
        if known is None or known[0] != stamp:
            known = (stamp, line_of(run))
            self._known[run.name] = known
        line = known[1]
        seal = self._seals.get(run.name)
        if seal is not None and seal[1].status != "not sealed":
            return replace(line, seal=seal[1].status, why=seal[1].why)
        return replace(line, seal=SEALED if sealed else OPEN)

    def _check(self, runs: Sequence[RunFolder], lines: list[RunLine]) -> None:
        """Verify some of the ended runs whose files were not looked at since they moved, for CHECK_S at most."""
        until = time.monotonic() + CHECK_S
        for at, run in enumerate(runs):
            if lines[at].state not in FINAL:
                continue
            sealed = self._seals.get(run.name)
            if sealed is not None and sealed[0] == moved(run):
                continue
            if time.monotonic() > until:
                return
            if _weight(run) > CHECK_BYTES:
                continue
            verdict = self.verify(run.name)
            if verdict.status != "not sealed":
                lines[at] = replace(lines[at], seal=verdict.status, why=verdict.why)


def line_of(run: RunFolder) -> RunLine:
    """Return a run's line as its own files tell it, its seal not looked at."""
    job, state, summary = run.job(), run.state(), run.read_json("summary.json")
    wrong = [f"{name} cannot be read" for name, value in (("job.json", job), ("state.json", state)) if not value]
    if "summary.json" in run.unreadable():
        wrong.append("summary.json cannot be read")
    values: dict[str, Any] = summary if isinstance(summary, dict) else {}
    return RunLine(
        run.name,
        run.path,
        one_line(job.get("preset") or run.name, 80),
        one_line(job.get("kind") or "?", 40),
        one_line(job.get("title") or "", 200),
        one_line(state.get("state") or "?", 20),
        str(state.get("reason") or ""),
        number(state.get("started")),
        number(state.get("ended")),
        outcome(run),
        headline(values),
        "; ".join(wrong),
    )


def _weight(run: RunFolder) -> float:
    """Bytes that verifying the run would read, as its manifest says."""
    sealed = run.read_json(ledger.MANIFEST)
    files = sealed.get("files") if isinstance(sealed, dict) else None
    entries = files.values() if isinstance(files, dict) else []
    return sum(number(entry.get("size")) or 0 for entry in entries if isinstance(entry, dict))


def stamp_of(paths: Sequence[Path]) -> Stamp:
    """Changes when one of the files does."""
    stamps: list[int] = []
    for path in paths:
        try:
            now = path.stat()
            stamps += [now.st_mtime_ns, now.st_size]
        except OSError:
            stamps += [0, -1]
    return tuple(stamps)


def moved(run: RunFolder) -> Stamp:
    """Changes when any file directly in the folder does; what lies deeper is only seen by `verify`."""
    try:
        return stamp_of([run.path, *sorted(run.path.iterdir())])
    except OSError:
        return (-1,)
