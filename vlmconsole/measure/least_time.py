"""The limit beside a measurement's figures: least TTFT and time per token of this model on this device."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from vlmconsole.engines.effective import EffectiveSettings
from vlmconsole.engines.profile import ServerProfile
from vlmconsole.limits.devices import DevicePeak, devices_of
from vlmconsole.limits.limit import limit
from vlmconsole.limits.work import WorkError, work_of
from vlmconsole.measure.calibration.device import CPU, FILE, read_device
from vlmconsole.measure.machine import hardware
from vlmconsole.measure.settings import BenchSettings
from vlmconsole.measure.summary import CellSummary
from vlmconsole.runs.conditions import Conditions
from vlmconsole.text.numbers import figure, whole
from vlmconsole.text.times import latency
from vlmconsole.vision.tokens import ProcessorError, visual_tokens

CLIENT, QUEUE = "client", "queue"


def beside(
    settings: BenchSettings,
    profile: ServerProfile,
    in_force: EffectiveSettings,
    summary: CellSummary,
    conditions: Conditions,
    home: Path,
) -> dict[str, Any]:
    """Return the limit as bench's JSON holds it: least times, their multiples, what bounds them; or `why` none is
    known.
    """
    folder = profile.model_dir()
    if folder is None:
        return {"why": "no limit known: the model's folder is not on this machine"}
    device = _device(conditions.hardware, home)
    if device is None:
        return {"why": f"no limit known: no peak of {conditions.hardware or 'this hardware'}: {_HINT}"}
    try:
        work = work_of(folder, kv_dtype=in_force.kv_dtype)
    except WorkError as error:
        return {"why": f"no limit known: {error.message}"}
    prompt = _fewest(summary.input_tokens)
    if prompt is None:
        return {"why": "no limit known: the server counts no prompt tokens"}
    if _set(in_force, "speculative-algorithm"):
        return {"why": "no limit known: speculative decoding gives several tokens a step"}
    batch = _batch(settings, in_force, summary)
    output = _fewest(summary.output_tokens) or 0
    known = limit(
        work,
        device,
        precision=_precision(in_force.precision or profile.precision),
        prompt_tokens=max(1, prompt - (_most(summary.cached_tokens) or 0)),
        visual_tokens=_visual(settings, profile) if not _most(summary.cached_tokens) else 0,
        batch=batch,
        context=prompt + output / 2,
        devices=_ways(in_force),
    )
    ttft, tpot = (figure.p50 if figure else None for figure in (summary.ttft_s, summary.tpot_s))
    value = known.beside(ttft, tpot, error_s=summary.lag.worst_p99() or 0.0)
    if not summary.valid and summary.invalid_because and "load client" in summary.invalid_because:
        value["bound_by"] = dict.fromkeys(value["bound_by"], CLIENT)
    elif _queued(settings, in_force, summary):
        value["bound_by"]["ttft"] = QUEUE
    return value | {"batch": batch}


_HINT = "not in the table of devices; `vlmconsole calibrate --device` measures this machine"


def limit_line(value: Any) -> str:
    """Return a limit in one line for people: `TTFT 3.1 × of the limit (compute) · TPOT 1.4 × (bandwidth)`; "" without
    one.
    """
    if not isinstance(value, dict):
        return ""
    if "why" in value:
        return str(value["why"])
    times, bounds = value.get("times_of_limit"), value.get("bound_by")
    if not isinstance(times, dict) or not isinstance(bounds, dict):
        return ""
    parts = [
        f"{name.upper()} {figure(times[name])} × of the limit {latency(value[f'{name}_s'])}, bound by {bounds[name]}"
        for name in ("ttft", "tpot")
        if name in times and name in bounds
    ]
    beaten = value.get("alarm")
    if isinstance(beaten, list) and beaten:
        parts.append(
            f"ALARM: {', '.join(str(name).upper() for name in beaten)} beats its limit, so one of them is wrong"
        )
    return f"{' · '.join(parts)} · {value.get('device')}" if parts else ""


def _device(line: str | None, home: Path) -> DevicePeak | None:
    """The device of a line of hardware; of several alike one answers, unless the server says otherwise (`_ways`)."""
    if line is None:
        return None
    listed = devices_of(line)
    if listed is not None:
        return listed[0]
    return read_device(home / FILE, CPU) if line == hardware() else None


def _ways(in_force: EffectiveSettings) -> int:
    """Over how many devices one replica is spread."""
    sizes = [whole(_set(in_force, f"{kind}-size")) or 1 for kind in ("tp", "pp")]
    return sizes[0] * sizes[1]


def _batch(settings: BenchSettings, in_force: EffectiveSettings, summary: CellSummary) -> float:
    """Sequences that a step decodes: the average in flight, no more than the server runs, of one replica."""
    flying = summary.in_flight.mean if summary.in_flight is not None else float(settings.concurrency)
    most = in_force.running_limit or flying
    return max(1.0, min(flying, most) / max(1, in_force.ranks))


def _queued(settings: BenchSettings, in_force: EffectiveSettings, summary: CellSummary) -> bool:
    """Whether most requests waited for others: more were in flight than the server runs at once."""
    waiting = summary.server.get("waiting")
    if waiting is not None:
        return waiting.p50 >= 1
    return in_force.running_limit is not None and settings.concurrency > in_force.running_limit


def _visual(settings: BenchSettings, profile: ServerProfile) -> int:
    """Visual tokens of a request's image; 0 where that is not known, which only makes the limit lower."""
    size, processor = settings.image_size, profile.processor_settings()
    if size is None or processor is None:
        return 0
    try:
        return visual_tokens(*size, processor).visual_tokens
    except ProcessorError:
        return 0


def _precision(stated: str | None) -> str:
    """The precision in which it multiplies: that of the weights, or a 16-bit format for quantised ones."""
    known = ("float32", "float16", "bfloat16")
    return next((kind for kind in known if kind == stated), "float8" if "fp8" in (stated or "") else "any")


def _set(in_force: EffectiveSettings, flag: str) -> Any:
    value = in_force.values.get(flag)
    return value if value is not None else in_force.told(flag)


def _fewest(tokens: int | str | None) -> int | None:
    """The lower end of a count as conditions hold it: 120, or `120–128`."""
    return min(_ends(tokens), default=None)


def _most(tokens: int | str | None) -> int | None:
    return max(_ends(tokens), default=None)


def _ends(tokens: int | str | None) -> list[int]:
    return [int(text) for text in re.findall(r"\d+", str(tokens))] if tokens is not None else []
