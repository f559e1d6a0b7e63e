"""What the views of measured runs show, worked out once for screens, plain terminals and reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vlmconsole.runs.folder import RunFolder


@dataclass(frozen=True)
class Bar:
    """One request on its cell's time axis, seconds after the first was sent.

    From ``sent`` to ``first`` it waited and was prefilled: a client cannot tell the two apart, but beside C > B the
    steps show. ``first`` None: no text came. ``due`` is when it should have been sent (open loop).
    """

    index: int
    sent: float
    first: float | None
    end: float
    failed: bool = False
    due: float | None = None


@dataclass(frozen=True)
class Point:
    """One cell as a point: TTFT p50 in seconds, throughput in tokens a second; None where not known."""

    name: str
    ttft_s: float | None
    throughput: float | None
    state: str


def waterfalls(run: RunFolder) -> dict[str, list[Bar]]:
    """The measured requests of each cell in the order of sending; "" is the cell of a run that has only one."""
    found: dict[str, list[Bar]] = {}
    for row in run.read_jsonl("requests.jsonl"):
        if row.get("phase") != "measured" or row.get("sent") is None or "role" in row:
            continue
        failed = row.get("failure") is not None or not row.get("counted")
        end = next((row[key] for key in ("done", "end") if row.get(key) is not None), row["sent"])
        bar = Bar(row["index"], row["sent"], row.get("first_text"), end, failed, row.get("scheduled"))
        found.setdefault(str(row.get("cell", "")), []).append(bar)
    for bars in found.values():
        bars.sort(key=lambda bar: bar.sent)
    return found


def points(run: RunFolder) -> list[Point]:
    """Every cell of a sweep, also while it runs; the one cell of a measurement; nothing for other runs."""
    cells = list(run.read_jsonl("cells.jsonl"))
    if not cells:
        summary = run.read_json("summary.json")
        if not isinstance(summary, dict) or "ttft_s" not in summary:
            return []
        cells = [{"name": run.name, "state": "valid" if summary.get("valid") else "invalid", "summary": summary}]
    return [_point(cell) for cell in cells]


def _point(cell: dict[str, Any]) -> Point:
    summary = cell.get("summary") or {}
    ttft = summary.get("ttft_s") or {}
    return Point(str(cell.get("name")), ttft.get("p50"), summary.get("throughput_tok_s"), str(cell.get("state")))
