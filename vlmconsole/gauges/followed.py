"""Our own requests in other processes, followed read-only: the chat's answers and the running jobs' events."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmconsole.chats.checked import read_answer, read_time
from vlmconsole.gauges.feed import Finished
from vlmconsole.gauges.figures import Mark
from vlmconsole.runs.events import EventTail
from vlmconsole.runs.folder import RunFolder, list_runs
from vlmconsole.text.numbers import number

LOOK = 5.0  # seconds between two looks for runs that began
NEWEST = 50  # run folders looked at: a running one is never old
ACTIVE = frozenset({"starting", "running"})


BEFORE = 600.0  # seconds of chat before the first look that are told too


class ChatAnswers:
    """Follows the answers in the conversation store, read-only: no chat is needed to run in this process.

    `server`: the name of the profile whose answers count; "" for those of all.
    """

    def __init__(self, database: Path, server: str = "") -> None:
        self._database, self._server = database, server
        self._db: sqlite3.Connection | None = None
        self._high = -1
        self._streaming: set[int] = set()

    def past(self, now: float) -> list[Finished]:
        """Return the answers of the last ten minutes, oldest first, at the wall time when each ended. Raises
        sqlite3.Error.
        """
        db = self._opened()
        if db is None:
            return []
        rows = db.execute(
            "SELECT answer, created FROM messages WHERE role = 'assistant' AND state != 'streaming' AND created > ?"
            " AND ? IN ('', server)",
            (now - BEFORE, self._server),
        ).fetchall()
        answers = [_of_answer(read_time(created), text, took=True) for text, created in rows if text]
        return sorted((answer for answer in answers if answer.at <= now), key=lambda answer: answer.at)

    def read(self, now: float) -> tuple[list[Finished], int]:
        """(answers that ended since the last call, answers streaming now)."""
        db = self._opened()
        if db is None:
            return [], 0
        first = self._high < 0
        rows = db.execute(
            "SELECT id, state, answer FROM messages WHERE role = 'assistant' AND (id > ? OR state = 'streaming')"
            " AND ? IN ('', server)",
            (self._high if not first else 1 << 62, self._server),
        ).fetchall()
        if first:
            self._high = db.execute("SELECT COALESCE(MAX(id), 0) FROM messages").fetchone()[0]
        known = {row[0] for row in rows}
        for missing in self._streaming - known:
            rows += db.execute("SELECT id, state, answer FROM messages WHERE id = ?", (missing,)).fetchall()
        self._high = max([self._high, *known])
        self._streaming = {row[0] for row in rows if row[1] == "streaming"}
        done = [_of_answer(now, row[2]) for row in rows if row[1] != "streaming" and row[2]]
        return done, len(self._streaming)

    def _opened(self) -> sqlite3.Connection | None:
        if self._db is None and self._database.exists():
            address = f"{self._database.as_uri()}?mode=ro"
            self._db = sqlite3.connect(address, uri=True, timeout=0.2, check_same_thread=False)
        return self._db

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


def _of_answer(at: float, text: str, took: bool = False) -> Finished:
    """What a kept answer tells; with `took`, `at` is when it was asked for, and its own time comes on top."""
    answer, _ = read_answer(text)
    timing, usage = answer.get("timing") or {}, answer.get("usage") or {}
    ended = at + (_positive(timing.get("e2e_s")) or 0.0) if took else at
    ttft, tpot = _positive(timing.get("ttft_s")), _positive(timing.get("tpot_s"))
    return Finished(ended, ttft, tpot, usage.get("completion_tokens"))


def _positive(seconds: float | None) -> float | None:
    """A time that a clock can have shown."""
    return seconds if seconds is not None and 0 <= seconds < 1e9 else None


@dataclass
class MeasuredAnswer:
    """What the running measurement told since the last look; `others`: how many more measure beside it.

    `gauges`: `in_flight` (requests) and `lag` (seconds), where its events tell them.
    """

    run: str
    finished: list[Finished]
    gauges: Mapping[str, float]
    others: int


class RunningJobs:
    """Follows the events of the runs that are under way."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._tails: dict[Path, tuple[RunFolder, EventTail]] = {}
        self._looked = -LOOK
        self._gauges: dict[Path, dict[str, float]] = {}
        self._measuring: set[Path] = set()  # runs that told of a request or of their client
        self._progress: dict[Path, Mapping[str, Any]] = {}

    def read(self, tick: float) -> tuple[MeasuredAnswer | None, list[Mark]]:
        """(what the newest measurement told, marks of all runs) since the last call; `tick` is monotonic seconds.

        One run alone: figures of two measurements in one curve would be of neither.
        """
        if tick - self._looked >= LOOK:
            self._look()
            self._looked = tick
        finished: dict[Path, list[Finished]] = {}
        marks: list[Mark] = []
        for path, (_, tail) in self._tails.items():
            ended = finished.setdefault(path, [])
            for event in tail.read():
                self._take(path, event, ended, marks)
            if ended or path in self._gauges:
                self._measuring.add(path)
        if not self._measuring:
            return None, marks
        newest = max(self._measuring)
        gauges = self._gauges.get(newest, {})
        return MeasuredAnswer(newest.name, finished[newest], gauges, len(self._measuring) - 1), marks

    def _look(self) -> None:
        running = {run.path: run for run in list_runs(self._runs)[:NEWEST] if run.state().get("state") in ACTIVE}
        for path in self._tails.keys() - running.keys():
            del self._tails[path]
            self._gauges.pop(path, None)
            self._measuring.discard(path)
            self._progress.pop(path, None)
        for path, run in running.items():
            if path not in self._tails:
                tail = EventTail(run.file("events.jsonl"))
                # A run that was under way before: what it did is history, not now.
                tail.offset = tail.path.stat().st_size if tail.path.exists() else 0
                self._tails[path] = (run, tail)

    def _take(self, path: Path, event: dict[str, Any], finished: list[Finished], marks: list[Mark]) -> None:
        at, kind = number(event.get("t")) or 0.0, event.get("kind")
        if kind == "request":
            tokens = number(event.get("output_tokens"))
            finished.append(
                Finished(
                    at,
                    number(event.get("ttft_s")),
                    number(event.get("tpot_s")),
                    None if tokens is None else int(tokens),
                )
            )
        elif kind == "mark" and event.get("text"):
            marks.append(Mark(at, str(event["text"])[:200]))
        elif kind == "progress":
            self._progress[path] = event
        elif kind == "metric":
            figure = {"in_flight": "in_flight", "client_lag_s": "lag"}.get(str(event.get("name")))
            value = number(event.get("value"))
            if figure is not None and value is not None:
                self._gauges.setdefault(path, {})[figure] = value

    def job(self) -> dict[str, Any] | None:
        """Return the run that is measured, else the newest running one: title, progress and conditions; None for
        none.
        """
        if not self._tails:
            return None
        path = max(self._measuring or self._tails)
        run = self._tails[path][0]
        job, conditions = run.job(), run.read_json("conditions.json", {})
        stated = conditions if isinstance(conditions, dict) else {}
        known = {key: value for key, value in stated.items() if value not in (None, [], {})}
        progress = self._progress.get(path, {})
        return {
            "run": run.name,
            "kind": job.get("kind"),
            "title": job.get("title"),
            "progress": _progress(progress),
            "conditions": known,
            "spec": spec if isinstance(spec := job.get("spec"), dict) else None,
        }


def _progress(event: Mapping[str, Any]) -> dict[str, Any] | None:
    """How far a run is, as its last event tells it."""
    if not event:
        return None
    counted = {name: number(event.get(name)) for name in ("done", "total")}
    return {**counted, **{name: event.get(name) for name in ("unit", "note")}}
