"""One run opened for a screen: what it measured and told so far, read again only where its files moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from vlmconsole.compare.runs import COMPARED, shown
from vlmconsole.desks.runs import Stamp, moved
from vlmconsole.measure.definitions import DEFINITIONS
from vlmconsole.measure.views import Bar, CellView, PairLine, cells, pairs, waterfalls
from vlmconsole.reports import judged, learned, measured, tuned
from vlmconsole.reports.book import guarded, settings
from vlmconsole.reports.parts import Section, flat
from vlmconsole.runs.folder import FINAL, RunFolder, to_json
from vlmconsole.runs.live_view import RunState, RunStory
from vlmconsole.runs.places import Places
from vlmconsole.runs.titles import title

NOTHING = RunState()
MOST_RAW = 60  # raw requests shown at once


@dataclass(frozen=True)
class OpenedRun:
    """What a run's folder holds, of whatever kind it is. `sections` are those of its report but for the measuring."""

    name: str
    kind: str
    state: str
    cells: tuple[CellView, ...] = ()
    pairs: tuple[PairLine, ...] = ()
    falls: tuple[tuple[str, tuple[Bar, ...]], ...] = ()
    conditions: tuple[Section, ...] = ()
    told: RunState = NOTHING
    sections: tuple[Section, ...] = ()


@dataclass(frozen=True)
class OpenTarget:
    """What a line of the screen opens: the run ("run"), a cell, a pair's arm, a request of a cell."""

    kind: str
    name: str = ""
    index: int = 0


class Opener:
    """Opens one run after the other; the last one stays in mind. Not for several threads."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self._stamp: tuple[str, Stamp] = ("", ())
        self._story: RunStory | None = None
        self._last: OpenedRun | None = None

    def read(self, run: RunFolder) -> OpenedRun:
        """Return the run as it is now. The same object when nothing moved."""
        if self._story is None or self._story.run.path != run.path:
            self._story, self._last = RunStory(run), None
        stamp = (str(run.path), moved(run))
        live = self._story.read()
        if self._last is not None and stamp == self._stamp and live is self._last.told:
            return self._last
        self._stamp = stamp
        job, state = run.job(), str(run.state().get("state", "?"))
        sections: list[Section] = []
        if state in FINAL:
            sections += guarded("verdict", run, lambda: judged.sections(run, self.places, pictures=False))
            sections += guarded("tuning", run, lambda: tuned.sections(run))
            sections += guarded("training", run, lambda: _without_curves(learned.sections(run)))
        under = guarded("measurement", run, lambda: _conditions(run))
        sections += guarded("settings", run, lambda: settings(run, job, [*sections, *under]))
        self._last = OpenedRun(
            run.name,
            str(job.get("kind") or "?"),
            state,
            tuple(cells(run)),
            tuple(pairs(run)),
            tuple((name, tuple(bars)) for name, bars in waterfalls(run).items()),
            tuple(under),
            live,
            tuple(sections),
        )
        return self._last


def _conditions(run: RunFolder) -> list[Section]:
    wanted = ("Conditions", "Cold and warm pairs")
    return [section for section in measured.sections(run) if section.title in wanted]


def _without_curves(sections: Sequence[Section]) -> list[Section]:
    """The screen draws the curves that the run's events tell."""
    return [section for section in sections if section.title not in ("Training", "While it ran")]


def evidence(run: RunFolder, target: OpenTarget) -> list[tuple[str, str]]:
    """Return what stands behind a figure, as (heading, text): conditions first, then figures, definitions, raw
    requests.
    """
    measured = cells(run)
    cell = next((candidate for candidate in measured if candidate.name == target.name), None)
    parts: list[tuple[str, str]] = []
    if target.kind == "cell" and cell is not None:
        parts.append(("conditions", _lines(cell.conditions)))
        settings_of = cell.conditions.get("settings")
        lines = [
            (key, value) for key, value in ([("state", cell.state), ("why", cell.why), ("work", cell.work)]) if value
        ]
        parts.append(("judged", "\n".join(f"{key:<10} {value}" for key, value in lines)))
        parts.append(("figures", _aligned(flat({k: v for k, v in cell.summary.items() if k != "first_failures"}))))
        meant = (f"{title(key)}: {text}" for key, text in DEFINITIONS.items())
        parts.append(("what the figures mean", "\n".join(meant)))
        if settings_of:
            parts.append(("the server's settings, as read back", to_json(settings_of)))
        parts.append(_raw(run, "requests.jsonl", "cell", target.name))
    elif target.kind == "arm":
        value = run.read_json("conditions.json")
        arm = value.get(target.name) if isinstance(value, dict) else None
        parts.append(("conditions", _lines(arm if isinstance(arm, dict) else {})))
        parts.append(_raw(run, "pairs.jsonl", "arm", target.name))
    elif target.kind == "request":
        rows = [
            row
            for row in run.read_jsonl("requests.jsonl")
            if str(row.get("cell", "")) == target.name and row.get("index") == target.index and "role" not in row
        ]
        measured_rows = [row for row in rows if row.get("phase") == "measured"] or rows
        if cell is not None:
            parts.append(("conditions", _lines(cell.conditions)))
        parts.append(("raw request", "".join(to_json(row) for row in measured_rows[:2]) or "it is not in the file"))
    else:
        for name in ("conditions.json", "summary.json", "job.json", "state.json"):
            value = run.read_json(name)
            parts.append((name, to_json(value) if value is not None else "there is none, or it cannot be read"))
    return [*parts, ("run folder", str(run.path))]


def _lines(conditions: dict[str, object]) -> str:
    """Conditions as people read them, those that are unknown said to be so."""
    if not conditions:
        return "no conditions recorded: not comparable with other figures"
    rows = [(COMPARED.get(key, key), shown(key, conditions.get(key))) for key in COMPARED]
    rows += [row for row in flat({k: v for k, v in conditions.items() if k not in COMPARED and k != "settings"})]
    return _aligned(rows)


def _aligned(rows: list[tuple[str, str]]) -> str:
    longest = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name:<{longest}}  {value}" for name, value in rows)


def _raw(run: RunFolder, file: str, key: str, name: str) -> tuple[str, str]:
    rows = (row for row in run.read_jsonl(file) if str(row.get(key, "")) == name)
    some = list(islice(rows, MOST_RAW))
    more = sum(1 for _ in rows)
    text = "".join(to_json(row) for row in some)
    return f"raw: {file}", text + (f"{more} more in the file\n" if more else "")
