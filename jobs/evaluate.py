"""The kind `evaluate`: before and after over the same pictures, judged by a plan frozen before the first answer."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmconsole.evaluation.settings import EvaluateSettings, SideName
from vlmconsole.gauges import nvidia
from vlmconsole.jobs import preflight
from vlmconsole.jobs.contract import Context, Estimate, JobError, JobKind, Stopped, not_installed
from vlmconsole.jobs.serve import started_by_the_lab
from vlmconsole.jobs.unused_settings import unused
from vlmconsole.runs.places import Places
from vlmconsole.system.typed_paths import named
from vlmconsole.text.counts import many

if TYPE_CHECKING:
    from vlmconsole.evaluation.answerer import Answerer, Opener
    from vlmconsole.evaluation.resolve import Resolved, ResolvedSide
    from vlmconsole.gates.plan import Plan

ANSWERS = "answers"  # the phase after the data
# Seconds an answer as measured on the bundled model (batches of 32, two CPU cores; a server of its own, C = 1).
SECONDS = {"in-process": 0.04, "server": 0.6}


def run(context: Context, spec: EvaluateSettings) -> dict[str, Any]:
    """Freeze the plan, answer both sides, judge. What was answered stays, whatever happens."""
    from vlmconsole.data.manifest import manifest_digest, read_manifest
    from vlmconsole.data.textvqa import make_textvqa
    from vlmconsole.evaluation import items as asked
    from vlmconsole.evaluation.answerer import Stopping
    from vlmconsole.evaluation.blind import blinded
    from vlmconsole.evaluation.resolve import resolve
    from vlmconsole.evaluation.resume import Earlier
    from vlmconsole.evaluation.run import Evaluation
    from vlmconsole.evaluation.scores import score_lines
    from vlmconsole.jobs.data import course, ready

    _check_sides(spec)
    resolved = resolve(spec, context.places)
    datasets = context.places.datasets
    if spec.textvqa:
        make_textvqa(named(spec.textvqa), datasets, say=context.events.note)
    course(context, spec.data, {ANSWERS: (resolved.images or 1) * len(spec.sides) * SECONDS[spec.backend]})
    folders = [ready(context, name) for name in spec.data]
    plan = _freeze(context, resolved, folders) if spec.plan else None
    items, diagnostic = asked.choose(spec, folders, plan), asked.diagnostic_items(spec, datasets, plan)
    how = (plan.blind if plan is not None else None) or spec.blind
    evaluation = Evaluation(
        run=context.run,
        settings=spec,
        items=items,
        opener=_opener(context, resolved),
        diagnostic=diagnostic,
        blind=blinded(items, how, spec.seed) if how else [],
        blind_how=how or "",
        earlier=Earlier(context.earlier) if context.earlier is not None else None,
        stopping=context.stopping,
        say=context.events.note,
        on_progress=lambda done, total, note: context.events.progress(done, total, "answers", note),
    )
    blind = f", {len(evaluation.blind)} without their images ({how})" if how else ""
    context.log(f"{evaluation.total} answers: {len(items)} examples × {many(len(spec.sides), 'side')}{blind}")
    context.events.phase(ANSWERS)
    try:
        summary = evaluation.answer()
    except ImportError as error:
        raise not_installed(error, "this", "train") from None
    except Stopping:
        raise Stopped({"note": "stopped; a retry resumes after the answers that are stored"}) from None
    for name, group in summary["groups"].items():
        context.log(f"{name}: {_group_line(group)}")
    for line in score_lines(summary):
        context.log(line)
    summary["data"] = {folder.name: manifest_digest(read_manifest(folder)) for folder in folders}
    summary["verdict"] = None
    if plan is not None:
        summary |= _judged(context, resolved, plan)
    return summary


def _check_sides(spec: EvaluateSettings) -> None:
    """Refuse a comparison of a model with itself, which is what a preset without its adapter asks for."""
    before, after = ((spec.adapter(s), spec.model(s), spec.server_of(s)) for s in ("before", "after"))
    if spec.paired and before == after:
        raise JobError(
            "before and after are the same model",
            "name what is tested: after_adapter or after_model (or paired=false for one side alone)",
            code="sides-same",
        )


def _freeze(context: Context, resolved: Resolved, folders: list[Path]) -> Plan:
    """The plan that judges this run, frozen before its first answer: now, or before the training."""
    from vlmconsole.gates.binding import freeze_for_run
    from vlmconsole.gates.trained import freezing
    from vlmconsole.ledger.chain import Ledger
    from vlmconsole.ledger.freezing import frozen_when

    plan = resolved.bound_plan(folders)
    ledger = Ledger(context.places.ledger)
    frozen = freeze_for_run(plan, context.run, context.places.home, ledger)
    freezing_state = freezing(context.run, context.places, frozen_when(ledger.read(), frozen.sha256))
    when = freezing_state.text if freezing_state is not None else "frozen before the first answer"
    level = "warning" if freezing_state is not None and freezing_state.late else "info"
    context.events.note(f"plan {plan.name} {when}, sha {frozen.sha256[:12]}…", level)
    return plan


def _opener(context: Context, resolved: Resolved) -> Opener:
    def opened(name: SideName) -> AbstractContextManager[Answerer]:
        side = resolved.sides[name]
        if resolved.settings.backend == "in-process":
            from vlmconsole.evaluation.local import in_process

            return in_process(side, context.stopping)
        return _served(context, side)

    return opened


@contextmanager
def _served(context: Context, side: ResolvedSide) -> Iterator[Answerer]:
    """The side behind its server: one of its own where whole models are compared, else the lab's or a running one."""
    from vlmconsole.evaluation.served import cache_remark, served
    from vlmconsole.measure.bench import find_server
    from vlmconsole.measure.settings import BenchSettings

    with ExitStack() as stack:
        if side.settings.own_servers:
            from vlmconsole.jobs.owned_server import owned

            server = stack.enter_context(owned(context, side.own_profile, side.name))
        else:
            settings = BenchSettings(server=side.server)
            server = find_server(settings, context.places, say=context.events.note)
        if remark := cache_remark(server.settings):
            context.events.note(f"{server.profile.name}: {remark}", "warning")
        yield stack.enter_context(served(side, server, context.stopping))


def _judged(context: Context, resolved: Resolved, plan: Plan) -> dict[str, Any]:
    """Judge by the frozen plan, chain the verdict, and take the development samples along that the plan counts."""
    from vlmconsole.gates.binding import record
    from vlmconsole.gates.verdict import judge
    from vlmconsole.ledger.chain import Ledger

    _copy_development(context, resolved, plan)
    ledger = Ledger(context.places.ledger)
    verdict = judge(context.run, ledger)
    record(verdict, context.run, ledger)
    context.run.write_json("verdict.json", verdict.to_json())
    for gate in verdict.gates:
        context.log(f"{gate.verdict}  {gate.gate.name} {gate.limit_text}  measured {gate.measured}  {gate.why}")
    counts = verdict.counts
    text = ", ".join(f"{n} {word}" for word, n in counts.items())
    context.events.note(f"verdict {verdict.verdict}: {text}")
    return {
        "verdict": verdict.verdict,
        "plan": plan.name,
        "plan_sha256": verdict.frozen.sha256 if verdict.frozen else None,
        "gates": counts,
        "problems": [problem.text for problem in verdict.problems],
    }


def _copy_development(context: Context, resolved: Resolved, plan: Plan) -> None:
    """Copy the development answers of the training that made the tested adapter, where this lab still has them."""
    if plan.generations.development:
        for path in resolved.after.adapter.development:
            shutil.copyfile(path, context.run.file(path.name))


def _group_line(group: dict[str, Any]) -> str:
    parts = []
    for side in ("before", "after"):
        if side in group and group[side]["answered"]:
            figures = group[side]
            failed = f", {figures['http_failures']} requests failed" if figures["http_failures"] else ""
            parts.append(f"{side} {100 * figures['all_correct']:.1f} % all-correct of {figures['answered']}{failed}")
    if "paired" in group:
        low, high = group["paired"]["interval"]
        parts.append(f"partial {group['paired']['difference']:+.4f} [{low:+.4f}, {high:+.4f}]")
    return "; ".join(parts) or "no answer"


def estimate(spec: EvaluateSettings, places: Places) -> Estimate:
    """Rough: the pictures are only known once the datasets are made."""
    from vlmconsole.evaluation.resolve import resolve

    known = resolve(spec, places).images
    if known is None:
        return Estimate(note="as many answers as the datasets hold images, for each side")
    answers = known * (len(spec.sides) + (spec.blind is not None))
    bundled = spec.backend == "server" or spec.base in ("", "tiny-qwen2.5-vl", "asset:tiny-qwen2.5-vl")
    return Estimate(
        seconds=answers * SECONDS[spec.backend] + 15 if bundled else None,
        note=f"{answers} answers" + (", seconds as measured on the bundled model" if bundled else ""),
    )


def devices(spec: EvaluateSettings, places: Places) -> list[str]:
    """Return the GPU where there is one, else the processor; a server that the job does not own holds its own
    device.
    """
    if spec.own_servers:
        from vlmconsole.jobs.sweep import held

        return held([spec.server_of(side) for side in spec.sides], places)
    if spec.backend == "in-process":
        return ["gpu"] if nvidia.read().cards else ["cpu"]
    return ["cpu"]


def needs_server(spec: EvaluateSettings, places: Places) -> str | None:
    """Return the lab's server that answers both sides; none in-process, nor where each side has one of its own."""
    if spec.backend == "in-process" or spec.own_servers or spec.after_server:
        return None
    return started_by_the_lab(spec.server, places)


def problems(spec: EvaluateSettings, places: Places, alone: bool) -> list[str]:
    """Return why it could not be answered, or not be judged by its plan, as far as that is known before it is
    queued.
    """
    from vlmconsole.data.scored import check_askable
    from vlmconsole.data.textvqa import NAME as TEXTVQA
    from vlmconsole.evaluation.preflight import of_side, plan_problems, unknown_groups
    from vlmconsole.evaluation.resolve import resolve

    resolved = resolve(spec, places)
    failures = []
    try:
        _check_sides(spec)
    except JobError as error:
        failures.append(error.full_message)
    for side in resolved.sides.values():
        failures += of_side(side)
        adapter = side.adapter
        failures += preflight.adapter(adapter.name, places, alone, served=not side.knows_adapters, find=adapter.find)
    if not spec.plan:  # else told with the plan
        names = [name for name in spec.data if name != TEXTVQA or not spec.textvqa]
        failures += preflight.data(names, places, alone) or unknown_groups(spec, places)
        for name in names:
            failures += preflight.scorer(
                name,
                spec.scorer,
                places,
                roles=["test", "exploratory"],
                splits=spec.groups,
                check=check_askable,
            )
    return failures + plan_problems(resolved, alone)


#: Settings by the one who answers; the rest is said to be unused (`jobs.unused`).
OF_BACKEND = {
    "in-process": ("base", "batch", "precision", "threads"),
    "server": ("server", "after_server", "concurrency"),
}


def unused_settings(spec: EvaluateSettings) -> list[str]:
    """Settings of the other backend that are set."""
    other = {key for backend, keys in OF_BACKEND.items() if backend != spec.backend for key in keys}
    who = "a server's evaluation" if spec.backend == "server" else "the in-process backend"
    return unused(spec, EvaluateSettings.model_fields.keys() - other, who)


def needs(spec: EvaluateSettings) -> tuple[str, ...]:
    """In-process it loads the models itself; a server has them loaded already."""
    return ("torch", "transformers", "peft") if spec.backend == "in-process" else ()


KIND = JobKind(
    name="evaluate",
    title="Evaluate before and after over the same images",
    spec=EvaluateSettings,
    run=run,
    estimate_here=estimate,
    devices=devices,
    needs_server=needs_server,
    needs=needs,
    problems=problems,
    unused=unused_settings,
)
