"""Figures of the gauges as people read them, the same on the command line and on the screen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

BARS = "▁▂▃▄▅▆▇█"
_PLACES = {"share": 0, "bytes": 1}  # decimals that are said of percent and GiB


def said(value: float | None, unit: str) -> str:
    """A figure as people read it: ms below a second, GiB, percent; never more than three digits that count."""
    if value is None:
        return ""
    if unit == "s":
        factor, name = scale(unit, (value,))
        return f"{_plain(value * factor)} {name}"
    if unit == "bytes":
        size = value / 1024**3
        return f"{size:.1f} GiB" if size < 99.95 else f"{size:,.0f} GiB"
    if unit == "share":
        return f"{value * 100:.0f} %"
    return f"{_plain(value)} {unit}".rstrip()


def _plain(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def scale(unit: str, values: Iterable[float | None]) -> tuple[float, str]:
    """(factor, unit) in which all of `values` are said where the unit stands once: that of the largest."""
    if unit == "s":
        return (
            (1.0, "s") if max((value for value in values if value is not None), default=0.0) >= 0.9995 else (1e3, "ms")
        )
    return {"bytes": (1 / 1024**3, "GiB"), "share": (100.0, "%")}.get(unit, (1.0, unit))


def spread_said(value: float | None, p50: float | None, p95: float | None, unit: str, width: int) -> tuple[str, str]:
    """(value, its p50 and p95) in `width` cells, 16 or more. The spread has its units, or all share the value's."""
    spread = " ".join(f"{name} {said(one, unit)}" for name, one in (("p50", p50), ("p95", p95)) if one is not None)
    if p50 is None or p95 is None or len(spread) <= width:
        return said(value, unit), spread
    factor, name = scale(unit, (value, p50, p95))
    shown = said(value, unit) if unit != "s" or value is None else f"{_plain(value * factor)} {name}"
    for digits in (3, 2, 1):
        half, most = (_short(round(one * factor, _PLACES.get(unit, 9)), digits) for one in (p50, p95))
        for spread in (f"p50 {half} p95 {most}", f"p50/95 {half}/{most}"):
            if len(spread) <= width:
                return shown, spread
    return shown, spread


def _short(value: float, digits: int) -> str:
    """A number in few cells: `10.9`, `.075`, `<.01`, `12k`."""
    size = abs(value)
    if size >= 9999.5:
        return f"{value / 1000:.0f}k"
    if not size:
        return "0"
    if size < 0.01 and (digits == 1 or size < 0.001):
        return "<.01" if digits == 1 else "<.001"
    if size < 0.9995:
        return f"{value:.{digits}g}".replace("0.", ".", 1)
    whole = 1 if size < 9.995 else 2 if size < 99.95 else 3
    text = f"{value:.{max(0, digits - whole)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def said_of(value: float | None, total: float | None, unit: str) -> str:
    """`21.3 of 31.9 GiB`, `4 of 8`; `–` for no value."""
    if value is None:
        return "–"
    if total is None:
        return said(value, unit)
    if unit == "bytes":
        return f"{said(value, unit).removesuffix(' GiB')} of {said(total, unit)}"
    return f"{said(value, unit)} of {total:g}"


def age_said(age: float | None) -> str:
    """How old a figure is: `0 s`, `119 s`, `2 min`; "" where there never was one."""
    if age is None:
        return ""
    return f"{age:.0f} s" if age < 120 else f"{age / 60:.0f} min"


def job_said(job: Mapping[str, Any]) -> str:
    """The running job in one line: title, progress, and the conditions that its figures hold under."""
    parts = [str(job.get("title") or job.get("run") or "a job")]
    progress = job.get("progress") or {}
    if progress.get("done") is not None:
        total = f" of {progress['total']:g}" if progress.get("total") is not None else ""
        parts.append(f"{progress['done']:g}{total} {progress.get('unit') or ''}".rstrip())
    if progress.get("note"):
        parts.append(str(progress["note"]))
    # The conditions are written at a measurement's end; until then what was asked for stands in for them.
    return " · ".join([*parts, *conditions_said(job.get("conditions") or _asked_for(job.get("spec") or {}))])


def _asked_for(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What a measurement's settings say already of its conditions."""
    named = {"client_concurrency": "concurrency", "image": "image", "input_tokens": "input_tokens"}
    asked = {name: spec[key] for name, key in named.items() if spec.get(key)}
    if spec.get("output_tokens") and spec.get("concurrency"):
        asked["output_tokens"] = f"{spec['output_tokens']} at most"
    if spec.get("server"):
        asked["model"] = f"server {spec['server']}"
    return asked


def conditions_said(conditions: Mapping[str, Any]) -> list[str]:
    """The main conditions as short pieces. A sweep keeps one set a cell: the last one is the newest."""
    cells = [value for value in conditions.values() if isinstance(value, Mapping)]
    if cells and len(cells) == len(conditions):
        conditions = cells[-1]
    said = []
    ins, outs = conditions.get("input_tokens"), conditions.get("output_tokens")
    if ins is not None or outs is not None:
        said.append(f"{'?' if ins is None else ins} in / {'?' if outs is None else outs} out")
    limits = [
        f"{letter}{conditions[key]}"
        for letter, key in (("C", "client_concurrency"), ("B", "running_limit"))
        if conditions.get(key) is not None
    ]
    if limits:
        said.append(" ".join(limits))
    said += [str(conditions[key]) for key in ("model", "precision", "image", "route") if conditions.get(key)]
    if conditions.get("cache"):
        said.append(f"prefix cache {conditions['cache']}")
    return said


def sparkline(points: tuple[float | None, ...], unit: str = "") -> str:
    """Bars between the lowest and the highest point, of a share between 0 and 100 %; a space where nothing came."""
    real = [point for point in points if point is not None]
    if not real:
        return ""
    # A share that stays the same is drawn where it is: 100 % is full, and 0 is not.
    low, high = (min(0.0, *real), max(1.0, *real)) if unit == "share" else (min(real), max(real))
    span = (high - low) or 1.0
    return "".join(
        " " if point is None else BARS[round((point - low) / span * (len(BARS) - 1))] for point in points
    ).strip()
