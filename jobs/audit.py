"""The kind `audit`: recompute a finished run from its files, as a job: `vlmconsole run audit --set run=last`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from vlmconsole.audit.run import FILE, audit, keep
from vlmconsole.errors import LabError
from vlmconsole.jobs import preflight
from vlmconsole.jobs.contract import Context, Estimate, JobError, JobKind, Spec
from vlmconsole.runs.folder import RunFolder, find_run, list_runs
from vlmconsole.runs.places import Places
from vlmconsole.system.typed_paths import PathOrName


class AuditSpec(Spec):
    """What to audit."""

    run: PathOrName = Field(
        "last", description="Run to audit: a name or a part of it; last: the newest finished evaluation"
    )
    replay: bool = Field(False, description="Also generate one answer again, in its batch (needs torch)")
    sample: str = Field("", description="The sample to replay; empty: one with 11 and 12, else the largest counts")


def run(context: Context, spec: AuditSpec) -> dict[str, Any]:
    """Write `audit.json` here and beside the audited run's other audits; the verdict is the summary's."""
    target = _target(context, spec.run)
    title = str(target.job().get("title") or "")
    which = " (the newest finished evaluation)" if spec.run == "last" else ""
    context.events.note(f"auditing {target.name}: {title}{which}")
    steps = 0

    def tick(text: str) -> None:
        nonlocal steps
        context.check_stop()
        steps += 1
        context.events.progress(steps, None, unit="part", note=text)

    result = audit(target, context.places, tick=tick)
    value = result.to_json()
    context.run.write_json(FILE, value)
    keep(result, context.places)
    for finding in result.findings:
        context.log(f"{finding.state:<14} {finding.name}: {finding.text}")
        if finding.state == "wrong":
            context.events.note(f"{finding.name}: {finding.text}", "error")
    counts = value["counts"]
    context.events.note(f"{target.name}: {result.verdict}, {counts['ok']} of {len(result.findings)} hold")
    summary: dict[str, Any] = {"run": target.name, "title": title, "verdict": result.verdict, **counts}
    if spec.replay:
        summary["replay"] = _replay(context, target, spec.sample)
    return summary


def _target(context: Context, name: str) -> RunFolder:
    if name != "last":
        return find_run(context.places.runs, name)
    for run in list_runs(context.places.runs):
        if run.job().get("kind") == "evaluate" and run.state().get("state") == "done":
            return run
    raise JobError(
        "There is no finished evaluation to audit.",
        "Name a run: `vlmconsole runs list` shows them.",
        code="run-missing",
    )


def _replay(context: Context, target: RunFolder, sample: str) -> str:
    from vlmconsole.audit.replay import choose_sample, replay

    try:
        done = replay(target, context.places, sample or choose_sample(target), tick=lambda text: context.log(text))
    except LabError as error:  # the audit is made, and stands without it
        context.events.note(f"not replayed: {error.message} {error.hint}".strip(), "warning")
        return f"not possible: {error.message}"
    context.run.write_json("replay.json", done.to_json())
    outcome = "the same" if not done.differs else f"other {' and '.join(done.differs)}"
    context.events.note(f"replayed {done.sample} in its batch of {done.members}: {outcome}")
    return outcome


def _estimate(spec: AuditSpec) -> Estimate:
    return Estimate(note="about a second per 100 images in the lab's datasets; minutes for thousands")


def _problems(spec: AuditSpec, places: Places, alone: bool) -> list[str]:
    try:
        if alone and spec.run != "last" and preflight.LATER not in spec.run:
            find_run(places.runs, spec.run)
    except LabError as error:
        return [error.full_message]
    return []


KIND = JobKind("audit", "Audit a training or an evaluation", AuditSpec, run, estimate=_estimate, problems=_problems)
