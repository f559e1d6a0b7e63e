"""What the views of measured runs show, worked out once for screens, plain terminals and reports.

A run folder may be damaged or come from elsewhere: what has not the shape it should have is left out, never trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vlmconsole.runs.folder import RunFolder
from vlmconsole.text.numbers import number, whole
from vlmconsole.text.sizes import size


@dataclass(frozen=True)
class Bar:
    """One request on its cell's time axis, seconds after the first was sent.

    From `sent` to `first` it waited and was prefilled: a client cannot tell the two apart, but beside C > B the
    steps show. `first` is the first token that came, of the reasoning where there is one; None: none came.
    `thought`: seconds of reasoning before the text. `due` is when it should have been sent (open loop).
    """

    index: int
    sent: float
    first: float | None
    end: float
    failed: bool = False
    due: float | None = None
    thought: float = 0.0


@dataclass(frozen=True)
class CellView:
    """One measured cell of any run. `state` is valid, invalid or failed, `why` what speaks against it, `work`
    whether it did equal work; `summary`, `conditions` and `settings` are as the run's files have them.
    """

    name: str
    state: str
    why: str
    work: str
    settings: dict[str, Any]
    summary: dict[str, Any]
    conditions: dict[str, Any]
    memory: dict[str, Any] = field(default_factory=dict)  # of a tuning's cell: see measure.tune_memory.Peak

    @property
    def peak(self) -> str:
        """The sampled memory peak with its kind, "" where none was sampled."""
        peak = number(self.memory.get("peak_bytes"))
        return f"{self.memory.get('kind')} {size(peak)}" if peak else ""

    @property
    def concurrency(self) -> int | None:
        """C, from the conditions, else as it was asked for."""
        return whole(self.conditions.get("client_concurrency")) or whole(self.settings.get("concurrency"))

    @property
    def running_limit(self) -> int | None:
        """B as the server told it, never as it was asked for."""
        return whole(self.conditions.get("running_limit"))

    @property
    def n(self) -> int | None:
        """Requests that count."""
        return whole(self.summary.get("n"))

    def share(self, key: str, share: str) -> float | None:
        """`p50` and the like of a distribution of the summary, e.g. `ttft_s`, in its unit."""
        value = self.summary.get(key)
        return number(value.get(share)) if isinstance(value, dict) else None

    @property
    def throughput(self) -> float | None:
        """Output tokens a second."""
        return number(self.summary.get("throughput_tok_s"))

    @property
    def goodput(self) -> float | None:
        """Requests a second that kept the objective; None where there was none, or nothing could be told."""
        return self.share("goodput", "requests_per_s")


@dataclass(frozen=True)
class Grid:
    """Cells by C (columns) and B (rows); those that are not there are None."""

    columns: tuple[int, ...]
    rows: tuple[int, ...]
    cells: dict[tuple[int, int], CellView]

    def cell(self, column: int, row: int) -> CellView | None:
        return self.cells.get((column, row))


@dataclass(frozen=True)
class PairLine:
    """One cold/warm pair of one arm. TTFT in seconds; cached tokens of the warm request, None: not known."""

    arm: str
    pair: int
    cold_s: float | None
    warm_s: float | None
    cached: int | None
    prompt: int | None
    raw: dict[str, Any]


def waterfalls(run: RunFolder) -> dict[str, list[Bar]]:
    """Return the measured requests of each cell in the order of sending; "" is the cell of a run that has only one."""
    by_cell: dict[str, list[Bar]] = {}
    for row in run.read_jsonl("requests.jsonl"):
        sent = number(row.get("sent"))
        if row.get("phase") != "measured" or sent is None or "role" in row:
            continue
        failed = row.get("failure") is not None or not row.get("counted")
        end = next((value for key in ("done", "end") if (value := number(row.get(key))) is not None), sent)
        index = number(row.get("index"))
        text = number(row.get("first_text"))
        firsts = [at for at in (number(row.get("first_reasoning")), text) if at is not None]
        first = min(firsts, default=None)
        due, end = number(row.get("scheduled")), max(sent, end)
        thought = 0.0 if first is None else max(0.0, (end if text is None else text) - first)
        bar = Bar(int(index) if index is not None else -1, sent, first, end, failed, due, thought)
        by_cell.setdefault(str(row.get("cell", "")), []).append(bar)
    for bars in by_cell.values():
        bars.sort(key=lambda bar: bar.sent)
    return by_cell


def overlap(bars: Sequence[Bar]) -> float:
    """Return how many requests were in flight on the average."""
    span = max(bar.end for bar in bars) - min(bar.sent for bar in bars)
    return sum(bar.end - bar.sent for bar in bars) / span if span else 0.0


def shortest(bars: Sequence[Bar]) -> float | None:
    """Return the shortest time to a first token of a cell, seconds: what lies beyond it was waiting (or prefill)."""
    return min((bar.first - bar.sent for bar in bars if bar.first is not None and not bar.failed), default=None)


def parts(bar: Bar, least: float | None) -> tuple[float, float, float]:
    """(beyond the cell's shortest time to a first token, that shortest, decode with its reasoning) of one request,
    seconds; without a token all is waiting.
    """
    if bar.first is None:
        return bar.end - bar.sent, 0.0, 0.0
    ttft = max(0.0, bar.first - bar.sent)
    prefill = min(ttft, ttft if least is None else least)
    return ttft - prefill, prefill, max(0.0, bar.end - bar.first)


def cells(run: RunFolder) -> list[CellView]:
    """Return every cell of a sweep (also while it runs) or of a tuning; the one cell of a measurement; else nothing."""
    rows = list(run.read_jsonl("cells.jsonl"))
    if rows:
        return [_cell(row) for row in rows]
    summary, conditions = run.read_json("summary.json"), run.read_json("conditions.json")
    if not isinstance(summary, dict) or "ttft_s" not in summary:
        return []
    state = "valid" if summary.get("valid") else "invalid"
    row = {"name": "", "state": state, "why": summary.get("invalid_because"), "summary": summary}
    return [_cell({**row, "conditions": conditions})]


def grid(cells: Sequence[CellView]) -> Grid | None:
    """Return the cells by C and B, when they are such a grid: two values of one of them at least, and no two cells
    alike.
    """
    placed: dict[tuple[int, int], CellView] = {}
    for cell in cells:
        if cell.concurrency is None or cell.running_limit is None:
            continue
        if (cell.concurrency, cell.running_limit) in placed:
            return None  # they differ in something else as well
        placed[cell.concurrency, cell.running_limit] = cell
    columns, rows = sorted({c for c, _ in placed}), sorted({b for _, b in placed})
    return Grid(tuple(columns), tuple(rows), placed) if len(columns) > 1 and len(rows) > 1 else None


def pairs(run: RunFolder) -> list[PairLine]:
    """Return the cold/warm pairs of a cache probe, in the order they were asked."""
    rows = []
    for row in run.read_jsonl("pairs.jsonl"):
        cold, warm = row.get("cold"), row.get("warm")
        if not isinstance(cold, dict) or not isinstance(warm, dict):
            continue
        cached = warm.get("cached")
        tokens = whole(cached.get("tokens")) if isinstance(cached, dict) else None
        rows.append(
            PairLine(
                str(row.get("arm", "")),
                whole(row.get("pair")) or 0,
                number(cold.get("ttft_s")),
                number(warm.get("ttft_s")),
                tokens,
                whole(warm.get("prompt_tokens")),
                row,
            )
        )
    return rows


def _cell(row: dict[str, Any]) -> CellView:
    parts = {key: value if isinstance(value := row.get(key), dict) else {} for key in _DICTS}
    return CellView(
        str(row.get("name", "")),
        str(row.get("state", "?")),
        str(row.get("why") or ""),
        str(row.get("work") or ""),
        parts["settings"],
        parts["summary"],
        parts["conditions"],
        parts["memory"],
    )


_DICTS = ("settings", "summary", "conditions", "memory")
