"""The running job and its conditions beside the gauges, the same on the command line and on the screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vlmconsole.text.bars import sparkline
from vlmconsole.text.counts import of_many


def job_said(job: Mapping[str, Any]) -> str:
    """Return the running job in one line: title, progress, and the conditions that its figures hold under."""
    parts = [str(job.get("title") or job.get("run") or "a job")]
    progress = job.get("progress") or {}
    if progress.get("done") is not None:
        parts.append(of_many(progress["done"], progress.get("total"), str(progress.get("unit") or "")))
    if progress.get("note"):
        parts.append(str(progress["note"]))
    # The conditions are written at a measurement's end; until then what was asked for stands in for them.
    return " · ".join([*parts, *conditions_said(job.get("conditions") or _asked_for(job.get("spec") or {}))])


def _asked_for(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What a measurement's settings say already of its conditions."""
    named = {"client_concurrency": "concurrency", "image": "image", "input_tokens": "input_tokens"}
    asked = {name: spec[key] for name, key in named.items() if spec.get(key)}
    if spec.get("output_tokens") and spec.get("concurrency"):
        asked["output_tokens"] = f"≤{spec['output_tokens']}"
    if spec.get("server"):
        asked["model"] = f"server {spec['server']}"
    return asked


def conditions_said(conditions: Mapping[str, Any]) -> list[str]:
    """Return the main conditions as short pieces. A sweep keeps one set a cell: the last one is the newest."""
    cells = [value for value in conditions.values() if isinstance(value, Mapping)]
    if cells and len(cells) == len(conditions):
        conditions = cells[-1]
    parts = []
    ins, outs = conditions.get("input_tokens"), conditions.get("output_tokens")
    if ins is not None or outs is not None:
        sizes = (
            "input varies" if ins is None else f"{ins} input",
            "output varies" if outs is None else f"{outs} output",
        )
        parts.append(f"{' · '.join(sizes)} tokens")
    limits = [
        f"{letter}{conditions[key]}"
        for letter, key in (("C", "client_concurrency"), ("B", "running_limit"))
        if conditions.get(key) is not None
    ]
    if limits:
        parts.append(" ".join(limits))
    parts += [str(conditions[key]) for key in ("model", "precision", "image", "route") if conditions.get(key)]
    if conditions.get("cache"):
        parts.append(f"prefix cache {conditions['cache']}")
    return parts


def course(points: Sequence[float | None], unit: str = "") -> str:
    """Return the last readings as a curve. A share has its place between 0 and 100 %, also when it stays the same."""
    known = [point for point in points if point is not None]
    scale = (min(0.0, *known), max(1.0, *known)) if unit == "share" and known else (None, None)
    return sparkline(points, None, *scale).strip()
