"""The figures of runs as CSV (one line a cell, pair or sample) and everything of them as one JSON value."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

from vlmconsole.compare.runs import COMPARED, FIGURES
from vlmconsole.gates.verdict import judge
from vlmconsole.ledger.chain import Ledger
from vlmconsole.measure.views import cells, pairs
from vlmconsole.reports.judged import is_planned
from vlmconsole.runs.events import finite
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.text.plain import inert

SHARES = ("n", "mean", "min", "p50", "p90", "p95", "p99", "max")
#: first characters that a spreadsheet takes for a formula
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the last four: full width
LISTED = ("cells.jsonl", "pairs.jsonl", "training.jsonl")  # small tables that belong into the JSON form


def as_json(runs: Sequence[RunFolder], places: Places, absent: Sequence[str] = ()) -> dict[str, Any]:
    """Settings, state, conditions, summary, seal and verdict of each run, with the rows of its small tables.

    absent: what should be among them and has no run.
    """
    ledger = Ledger(places.ledger)
    runs_read = []
    for run in runs:
        value = {
            "run": run.name,
            "path": str(run.path),
            "job": run.job(),
            "state": run.state(),
            "conditions": run.read_json("conditions.json"),
            "summary": run.read_json("summary.json"),
            "seal": ledger.verify(run).to_json(),
            "verdict": judge(run, ledger).to_json() if is_planned(run) else None,
        }
        for name in LISTED:
            rows = list(run.read_jsonl(name))
            if rows:
                value[name.removesuffix(".jsonl")] = rows
        runs_read.append(finite(value))
    return {"runs": runs_read, "absent": list(absent)}


def as_csv(runs: Sequence[RunFolder]) -> str:
    """Return one line for each cell, pair, training step or sample of the runs, with its conditions; the union of all
    columns.

    Failed and invalid ones are lines like the others, with their state. A text that a spreadsheet would run as a
    formula gets an apostrophe before it, a column's name too; control characters are left out.
    """
    rows = [row for run in runs for row in _rows(run)]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([tame(column) for column in columns])
    for row in rows:
        writer.writerow([tame(row.get(column)) for column in columns])
    return out.getvalue()


def _rows(run: RunFolder) -> Iterator[dict[str, Any]]:
    head = {"run": run.name, "kind": run.job().get("kind"), "run_state": run.state().get("state")}
    some = False
    for cell in cells(run):
        some = True
        row = {**head, "row": "cell", "name": cell.name, "state": cell.state, "why": cell.why, "work": cell.work}
        for key in FIGURES:
            stored = cell.summary.get(key)
            if isinstance(stored, dict):
                row |= {f"{key}.{share}": stored.get(share) for share in SHARES}
            else:
                row[key] = stored
        row |= {key: cell.summary.get(key) for key in ("n", "failures")}
        yield row | {f"condition.{key}": cell.conditions.get(key) for key in COMPARED}
    for pair in pairs(run):
        some = True
        row = {**head, "row": "pair", "name": pair.arm, "pair": pair.pair, "cold_s": pair.cold_s}
        yield row | {"warm_s": pair.warm_s, "cached_tokens": pair.cached, "prompt_tokens": pair.prompt}
    for name, kind in (("training.jsonl", "step"), ("before.jsonl", "before"), ("after.jsonl", "after")):
        for value in run.read_jsonl(name):
            some = True
            plain = {k: v for k, v in value.items() if not isinstance(v, dict | list)}
            if isinstance(value.get("truth"), list):  # the human answers of TextVQA
                plain["truth"] = json.dumps(value["truth"], ensure_ascii=False)
            whose = {**head, "row": kind}
            yield {**whose, **plain, **whose}  # a line's own keys never hide whose it is
    if not some:
        yield {**head, "row": "run", "why": run.state().get("reason")}


def tame(value: Any) -> Any:
    """Return a cell of a CSV file: no control characters, and nothing that a spreadsheet would run as a formula."""
    if not isinstance(value, str):
        return value
    text = inert(value)
    return f"'{text}" if text.startswith(FORMULA) or value.startswith(FORMULA) else text
