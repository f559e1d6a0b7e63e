"""This machine's own measuring error: the load client against a reference server whose every write is known."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vlmconsole.measure.calibration.reference import Schedule, running
from vlmconsole.measure.client.replay import Measured
from vlmconsole.measure.inputs import InputRecipe
from vlmconsole.measure.load import LoadCell, Target, run_cell
from vlmconsole.measure.machine import hardware
from vlmconsole.measure.summary import CellSummary
from vlmconsole.runs.folder import RunFolder, write_atomic
from vlmconsole.scoring.distribution import Distribution, distribution
from vlmconsole.system.reading import read_json
from vlmconsole.text.times import minute

SCHEDULE = Schedule(role_ms=5, ttft_ms=50, itl_ms=10, tokens=24)
STEPS = ((1, 20), (4, 60), (32, 192), (128, 512))  # concurrency, requests
LIMIT_S = 0.005  # TTFT error (p95) past which the client is not to be trusted: a tenth of the reference's TTFT


@dataclass(frozen=True)
class CalibrationStep:
    """One concurrency. Errors are client − truth, seconds, over requests.

    `ttft_error_s`: our stamp of the first text − the moment the server had written it. `ttft_against_server_s`:
    our TTFT − the server's own (from having read the request), so it holds the way in and the server's lateness too.
    """

    concurrency: int
    n: int
    failures: int
    ttft_error_s: Distribution | None
    ttft_error_abs_p95_s: float | None
    ttft_against_server_s: Distribution | None
    tpot_error_s: Distribution | None
    lag_p99_s: float | None
    cpu_us_per_piece: float | None
    trusted: bool
    why: str | None


@dataclass(frozen=True)
class Calibration:
    """What `vlmconsole calibrate` found. `trusted_to`: the largest concurrency up to which every step held."""

    when: float
    hardware: str
    limit_s: float
    schedule: Schedule
    steps: list[CalibrationStep]
    trusted_to: int | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def save(self, path: Path) -> None:
        write_atomic(path, json.dumps(self.to_json(), indent=1) + "\n")


def calibrate(
    run: RunFolder,
    *,
    steps: tuple[tuple[int, int], ...] = STEPS,
    schedule: Schedule = SCHEDULE,
    on_step: Callable[[CalibrationStep], None] = lambda _: None,
    stopping: Callable[[], bool] = lambda: False,
) -> Calibration:
    """Measure the client at each concurrency, with the raw requests in `run`. Takes about half a minute."""
    measured: list[CalibrationStep] = []
    trusted: int | None = None
    for concurrency, requests in steps:
        if stopping():
            break
        step = _step(run, schedule, concurrency, requests, stopping)
        measured.append(step)
        on_step(step)
        if step.trusted and len(measured) == sum(earlier.trusted for earlier in measured):
            trusted = concurrency
    return Calibration(round(time.time(), 3), hardware(), LIMIT_S, schedule, measured, trusted)


def _step(
    run: RunFolder, schedule: Schedule, concurrency: int, requests: int, stopping: Callable[[], bool]
) -> CalibrationStep:
    name = f"calibrate-{concurrency}"
    fields = {"model": "reference", "max_tokens": schedule.tokens, "stream": True}
    recipe = InputRecipe(name, {**fields, "stream_options": {"include_usage": True}})
    seen: list[Measured] = []
    with running(schedule) as server:
        cell = LoadCell(
            name=name,
            target=Target.of(server.chat_url),
            measured=recipe.bodies(range(requests)),
            warm_up=recipe.bodies(range(-min(4, concurrency), 0)),
            concurrency=concurrency,
            extra={"cell": name},
        )
        summary = run_cell(cell, run, on_request=seen.append, stopping=stopping)
        truth = {row["id"]: row for row in server.truth()}
    errors, against, tpot = [], [], []
    for row in seen:
        written = truth[f"{name}-{row.raw.number}"]
        stamps, timing = row.result.stamps, row.timing
        if stamps.first_text is None or timing.ttft_s is None:
            continue
        errors.append(stamps.first_text - written["first"] / 1e9)
        against.append(timing.ttft_s - (written["first"] - written["received"]) / 1e9)
        if timing.tpot_s is not None:
            tpot.append(timing.tpot_s - (written["last"] - written["first"]) / 1e9 / (written["tokens"] - 1))
    return _judge(concurrency, summary, errors, against, tpot)


def _judge(
    concurrency: int, summary: CellSummary, errors: list[float], against: list[float], tpot: list[float]
) -> CalibrationStep:
    absolute = distribution(abs(error) for error in errors)
    why = summary.invalid_because
    if absolute is None:
        why = why or "no request came back"
    elif absolute.p95 > LIMIT_S:
        why = f"TTFT error p95 {absolute.p95 * 1000:.1f} ms > {LIMIT_S * 1000:g} ms"
    elif summary.failures:
        why = why or f"{summary.failures} requests failed: {'; '.join(summary.first_failures)}"
    return CalibrationStep(
        concurrency=concurrency,
        n=summary.n,
        failures=summary.failures,
        ttft_error_s=distribution(errors),
        ttft_error_abs_p95_s=absolute.p95 if absolute else None,
        ttft_against_server_s=distribution(against),
        tpot_error_s=distribution(tpot),
        lag_p99_s=summary.lag.worst_p99(),
        cpu_us_per_piece=summary.client.cpu_us_per_piece if summary.client else None,
        trusted=why is None,
        why=why,
    )


def read_calibration(path: Path | None, concurrency: int) -> str | None:
    """Return one sentence for the conditions of a result measured at `concurrency`; None when there is no
    calibration.
    """
    try:
        stored = read_json(path) if path is not None else None
        if stored is None:
            return None
        if stored["hardware"] != hardware():
            return f"calibrated on other hardware ({stored['hardware']}), so not known here"
        steps = {step["concurrency"]: step for step in stored["steps"]}
        trusted = stored["trusted_to"]
        day = minute(stored["when"])
        reach = min((at for at in steps if at >= concurrency), default=None)
        if reach is None:
            return f"not known at C={concurrency}: calibrated to C={max(steps)} on {day}"
        error, p95 = steps[reach]["ttft_error_s"], steps[reach]["ttft_error_abs_p95_s"]
        label = f"TTFT {error['p50'] * 1000:+.2f} ms p50, ±{p95 * 1000:.2f} ms p95 at C={reach} ({day})"
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return label if trusted is not None and concurrency <= trusted else f"{label}; NOT trusted past C={trusted or 0}"
