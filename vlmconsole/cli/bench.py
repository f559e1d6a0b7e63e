"""`vlmconsole bench` and `vlmconsole calibrate`: measure a server, and measure the measuring."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlmconsole.cli.common import CANNOT_JUDGE, FAILED, emit, say, state

if TYPE_CHECKING:
    from rich.console import Console

    from vlmconsole.jobs.presets import Preset
    from vlmconsole.measure.calibration.calibrate import CalibrationStep

KIND = "bench"
#: parts of the summary that the JSON has at its top, too
GAINED = ("goodput", "steady")


def register(app: typer.Typer) -> None:
    app.command("bench")(bench)
    app.command("calibrate")(calibrate)


def bench(
    preset: Annotated[str, typer.Argument(help="Measuring preset; options and --set change it")] = "",
    server: Annotated[str, typer.Option(help="Server profile; default: the setting `server`")] = "",
    base_url: Annotated[str, typer.Option(help="Base URL of any OpenAI-compatible server, instead of a profile")] = "",
    model: Annotated[str, typer.Option(help="Model name to send, with --base-url")] = "",
    api_key_env: Annotated[str, typer.Option(help="NAME of the variable that holds the API key, with --base-url")] = "",
    concurrency: Annotated[
        int | None, typer.Option("-c", "--concurrency", help="Requests in flight, C; default 1")
    ] = None,
    requests: Annotated[int | None, typer.Option("-n", "--requests", help="Measured requests; default 12")] = None,
    warm_up: Annotated[int | None, typer.Option(help="Warm-up requests, not counted; default: C, at most 4")] = None,
    image: Annotated[str | None, typer.Option(metavar="WxH", help="Send an image of this size, pixels")] = None,
    input_tokens: Annotated[int | None, typer.Option(help="Prompt tokens, including the image's")] = None,
    output_tokens: Annotated[int | None, typer.Option(help="Max tokens of an answer; default 128")] = None,
    equal_work: Annotated[
        bool, typer.Option("--equal-work", help="Set aside answers that end before max tokens")
    ] = False,
    rate: Annotated[float | None, typer.Option(help="Open loop: requests per second")] = None,
    arrivals: Annotated[
        str | None, typer.Option(help="Arrivals: closed, constant, poisson, gamma, ramp or trace; default constant")
    ] = None,
    burstiness: Annotated[float | None, typer.Option(help="Of gamma arrivals: 1 is Poisson, below 1 in bursts")] = None,
    ramp_from: Annotated[
        float | None, typer.Option(help="Requests per second at the start of a ramp; --rate is its end")
    ] = None,
    trace: Annotated[
        str, typer.Option(metavar="FILE", help="Replay a trace: JSONL of timestamp, input_length, output_length")
    ] = "",
    speed: Annotated[float | None, typer.Option(help="How many times as fast a trace is replayed; default 1")] = None,
    duration: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Send requests for so long, in place of --requests")
    ] = None,
    data: Annotated[str, typer.Option(help="Dataset whose questions are the load")] = "",
    split: Annotated[str, typer.Option(help="Split of --data; default: test, or its only one")] = "",
    images: Annotated[str, typer.Option(metavar="DIR", help="Folder whose images are the load, with --prompt")] = "",
    prompt: Annotated[str, typer.Option(help="What is asked about the images of --images")] = "",
    images_each: Annotated[int | None, typer.Option(help="Images in each request, with --images; default 1")] = None,
    jpeg: Annotated[int | None, typer.Option(metavar="Q", help="Encode images anew as JPEG of this quality")] = None,
    repeat_as_is: Annotated[
        bool, typer.Option("--repeat-as-is", help="Repeat questions unchanged, so that caches may know them")
    ] = False,
    slo: Annotated[
        str, typer.Option(metavar="LIMITS", help="Objective for goodput, e.g. ttft_p95<=0.8,tpot_p95<=0.05 (seconds)")
    ] = "",
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change any setting; repeatable")
    ] = None,
    hand_over: Annotated[
        bool, typer.Option("--hand-over", help="Allow stopping a server that holds the device; it restarts afterwards")
    ] = False,
) -> None:
    """Measure a server: TTFT, TPOT, E2E, throughput, each with its conditions and the client's own lag."""
    from vlmconsole.cli.foreground import follow_job, interruptions
    from vlmconsole.cli.measured import show_measured
    from vlmconsole.cli.run import ending
    from vlmconsole.jobs.presets import Preset, load_preset
    from vlmconsole.queue import adding, process
    from vlmconsole.queue.store import Store
    from vlmconsole.runs.folder import RunFolder

    places = state.lab.places
    given: dict[str, Any] = {
        "server": server or None,
        "base_url": base_url or None,
        "model": model or None,
        "api_key_env": api_key_env or None,
        "concurrency": concurrency,
        "requests": requests,
        "warm_up": warm_up,
        "image": image,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "equal_work": equal_work or None,
        "rate": rate,
        "arrivals": arrivals or ("trace" if trace else None),
        "burstiness": burstiness,
        "ramp_from": ramp_from,
        "trace": trace or None,
        "speed": speed,
        "duration": duration,
        "data": data or None,
        "split": split or None,
        "images": images or None,
        "prompt": prompt or None,
        "images_each": images_each,
        "jpeg": jpeg,
        "repeat_as_is": repeat_as_is or None,
        "slo": slo or None,
    }
    chosen = load_preset(preset, places) if preset else Preset(KIND, KIND, "Measure a server", {})
    chosen = _with(chosen, {key: value for key, value in given.items() if value is not None})
    store = Store(places.queue)
    planned = adding.plan(chosen, sets or [], places)
    with interruptions() as noted:
        number = adding.add(store, planned, hand_over=hand_over)
        process.ensure(places)
        say(f"job {number}: {planned[0].job.title}")
        code = follow_job(store, number, places, cancels=noted) or 0
    job = store.get(number)
    if not job.run:  # it never came to run
        emit({"summary": None, "conditions": None, "run": None, "state": job.state, "reason": job.reason}, job.state)
        raise typer.Exit(code)
    run = RunFolder(Path(job.run))
    summary, conditions = run.read_json("summary.json"), run.read_json("conditions.json")
    now = run.state()
    result = {
        "summary": summary,
        "conditions": conditions,
        "run": run.name,
        "path": str(run.path),
        "state": now.get("state"),
        "reason": now.get("reason"),
    }
    result |= {key: summary[key] for key in GAINED if isinstance(summary, dict) and key in summary}

    def human(console: Console) -> None:
        if isinstance(summary, dict) and "ttft_s" in summary and show_measured(console, run):
            console.print(f"run: {run.path}", markup=False, soft_wrap=True)
        else:
            console.print(ending(run), markup=False, soft_wrap=True)

    emit(result, human)
    if isinstance(summary, dict) and summary.get("valid") is False:
        # Nothing counted is a failure; figures that may not be used are no failure of the server's.
        code = code or (CANNOT_JUDGE if summary.get("n") else FAILED)
    raise typer.Exit(code)


def _with(preset: Preset, given: dict[str, Any]) -> Preset:
    """The preset with the options laid over it, and the lab's own server where none is named."""
    from dataclasses import replace

    from vlmconsole.jobs.kinds import load_kind
    from vlmconsole.queue.adding import titled

    spec = {**preset.spec, **given}
    if "duration" in given and "requests" not in given:
        spec.pop("requests", None)  # the preset's
    title = titled(preset, load_kind(preset.kind, state.lab.places).title, spec)
    if preset.kind == KIND and not spec.get("server") and not spec.get("base_url"):
        spec["server"] = state.lab.settings.server
    return replace(preset, spec=spec, title=title)


def calibrate(
    device: bool = typer.Option(
        False, "--device", help="Measure instead what this machine's devices can do: arithmetic and memory bandwidth"
    ),
) -> None:
    """This machine's own measuring error: the load client against a reference server whose every write is known.

    The machine should be as idle as it will be while measuring. Takes about half a minute.
    """
    if device:
        return _calibrate_device()
    import os
    import time

    from vlmconsole.jobs import closing
    from vlmconsole.measure.calibration import calibrate as calibrating
    from vlmconsole.runs.folder import RunFolder
    from vlmconsole.system.processes import started

    places = state.lab.places
    path = places.home / "calibration.json"
    title = "Calibrate the load client"
    run = RunFolder.create(places.runs, kind="calibrate", preset="calibrate", spec={}, title=title, home=places.home)
    run.set_state("running", pid=os.getpid(), pid_started=started(os.getpid()), started=round(time.time(), 3))
    try:
        calibration = calibrating.calibrate(run, on_step=lambda step: say(step_line(step)))
        run.write_json("summary.json", calibration.to_json())
        calibration.save(path)
    except BaseException as error:
        closing.close(run, "cancelled" if isinstance(error, KeyboardInterrupt) else "failed", str(error) or None)
        raise
    closing.close(run, "done", None)
    trusted = (
        f"trusted up to C={calibration.trusted_to}" if calibration.trusted_to is not None else "not trusted at any C"
    )
    lines = [step_line(step) for step in calibration.steps]
    note = f"{trusted} (TTFT error p95 ≤ {calibration.limit_s * 1000:g} ms); kept in {path}, later results carry it"
    emit({**calibration.to_json(), "path": str(path), "run": run.name}, "\n".join([*lines, note]))
    raise typer.Exit(0 if calibration.trusted_to is not None else FAILED)


def _calibrate_device() -> None:
    """Measure this machine's ceilings, by which limits stand beside figures of servers that run here."""
    from vlmconsole.measure.calibration.device import FILE, calibrate_device

    path = state.lab.places.home / FILE
    calibration = calibrate_device(lambda name, rate: say(f"{name}: {rate / 1e9:,.1f} G/s"))
    calibration.save(path)
    peaks = {name: peak.to_json() for name, peak in calibration.peaks.items()}
    lines = [
        f"{name}: {kind} {rate / 1e9:,.1f} GFLOP/s"
        for name, peak in calibration.peaks.items()
        for kind, rate in peak.flops.items()
    ]
    value = {"hardware": calibration.hardware, "when": calibration.when, "peaks": peaks, "path": str(path)}
    if calibration.remark:
        say(f"! {calibration.remark}: peaks may be too low, and limits by them too high; measure again when it is idle")
    emit(value | {"remark": calibration.remark}, "\n".join([*lines, f"kept in {path}; bench shows limits by it"]))


def step_line(step: CalibrationStep) -> str:
    """One concurrency of a calibration, for people."""
    error, tpot = step.ttft_error_s, step.tpot_error_s
    if error is None or step.ttft_error_abs_p95_s is None:
        return f"C={step.concurrency:<4} {step.why}"
    p50, p95 = error.p50 * 1000, step.ttft_error_abs_p95_s * 1000
    parts = [
        f"C={step.concurrency:<4} TTFT error p50 {p50:+.2f} p95 ±{p95:.2f} ms",
        f"TPOT error p50 {tpot.p50 * 1e6:+.0f} µs" if tpot else "",
        f"lag p99 {step.lag_p99_s * 1000:.1f} ms" if step.lag_p99_s is not None else "",
        f"{step.cpu_us_per_piece:.0f} µs CPU a piece" if step.cpu_us_per_piece is not None else "",
        f"n={step.n}",
        "" if step.trusted else f"NOT trusted: {step.why}",
    ]
    return " · ".join(part for part in parts if part)
