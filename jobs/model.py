"""Train the bundled model from nothing: ``vlmconsole run model-tiny``."""

import shutil
from typing import Any

from pydantic import Field
from vlmconsole.jobs.contract import Context, Estimate, JobError, JobKind, Spec, Stopped, not_installed

CHECKPOINT = "checkpoint.pt"


class ModelSpec(Spec):
    """The recipe (see `vlmconsole.training.lessons.Recipe`) and how often to look up from it."""

    seed: int = Field(7, ge=0, description="weights and every scene follow from it")
    threads: int = Field(2, ge=1, le=64, description="CPU threads; another number gives other last digits")
    batch: int = Field(24, ge=2, le=256, description="pictures a step")
    eyes_steps: int = Field(1200, ge=1, description="steps of the vision phase")
    eyes_rate: float = Field(1.5e-3, gt=0, description="AdamW learning rate of the vision phase")
    language_steps: int = Field(500, ge=1, description="steps of the question-and-answer phase")
    language_rate: float = Field(1.5e-3, gt=0, description="AdamW learning rate of that phase")
    most_counted: int = Field(3, ge=0, le=12, description="largest count it is ever shown")
    count_share: int = Field(17, ge=0, description="counting pictures in a batch")
    warm_up: int = Field(30, ge=0, description="steps of rising learning rate, each phase")
    eyes_share: float = Field(0.5, ge=0, description="weight of the naming loss in the language phase")
    refresh: int = Field(8, ge=0, description="eyes scenes seen beside each language batch")
    question_steps: int = Field(500, ge=1, description="steps of a stage of short questions")
    question_rate: float = Field(1.5e-3, gt=0, description="AdamW learning rate of those stages")
    question_batch: int = Field(20, ge=2, le=256, description="pictures a step of that phase")
    question_counts: int = Field(5, ge=0, description="counting pictures among them")
    question_turns: int = Field(8, ge=1, description="questions about one picture")
    question_refresh: int = Field(12, ge=0, description="eyes scenes seen beside each question batch")
    checkpoint_every: int = Field(50, ge=1, description="steps between checkpoints")
    measure: int = Field(512, ge=16, description="fresh scenes for each skill, four times as many for naming")
    measure_seed: int = Field(1, ge=0, description="seed of those scenes")


def _estimate(spec: ModelSpec) -> Estimate:
    # Seconds a step of 24 (of 20 with 12 beside, of 20 with the eyes left alone), and of the measuring at the end.
    eyes = spec.batch / 24 * 0.6 * spec.eyes_steps * 17 / 12
    words = spec.batch / 24 * 1.1 * spec.language_steps
    asked = spec.question_batch / 20 * (1.1 + 3.2 * 0.8) * spec.question_steps
    seconds = eyes + words + asked + 0.5 * spec.measure
    return Estimate(
        seconds=seconds * 2 / min(2, spec.threads),
        memory_bytes=1_200_000_000,
        disk_bytes=40_000_000,
        note="from a run on two busy cores of an AMD EPYC",
    )


def run(context: Context, spec: ModelSpec) -> dict[str, Any]:
    """Train, measure, and leave the model folder ``model/``. Takes up an earlier attempt's checkpoint."""
    try:
        from vlmconsole.training import bundle, lessons, pretrain, skills
    except ImportError as error:
        raise not_installed(error, "training", "train") from None

    recipe = lessons.Recipe(**spec.model_dump(exclude={"checkpoint_every", "measure", "measure_seed"}))
    checkpoint = context.run.file(CHECKPOINT)
    if context.earlier is not None and not checkpoint.exists() and context.earlier.file(CHECKPOINT).exists():
        shutil.copyfile(context.earlier.file(CHECKPOINT), checkpoint)
        context.events.note(f"taking up the checkpoint of {context.earlier.name}")
    before, total = {}, 0
    for name, steps in lessons.phase_steps(recipe).items():
        before[name] = total
        total += steps

    def report(point: pretrain.Point) -> None:
        done = before[point.phase] + point.step
        right = "objects named right" if point.phase in ("eyes", *lessons.LOOKS) else "answer tokens right"
        note = f"{point.phase}: loss {point.loss:.3f}, {right} {100 * point.accuracy:.1f} %"
        context.events.progress(done, total, note=note)
        context.events.metric(f"{point.phase} loss", point.loss, step=done)
        context.events.metric(f"{point.phase} accuracy", point.accuracy, step=done)
        context.events.metric("seconds per step", point.seconds_per_step, step=done, unit="s")
        context.log(f"step {done} of {total}, {note}, {point.seconds_per_step:.2f} s a step")

    loaded = bundle.begin(context.run.file("model"), recipe)
    try:
        head = pretrain.pretrain(
            loaded,
            recipe,
            checkpoint=checkpoint,
            report=report,
            stopping=context.stopping,
            every=spec.checkpoint_every,
        )
    except FloatingPointError as error:
        raise JobError(f"{error}: lower the learning rate, or start again from another seed") from None
    except ValueError as error:
        raise JobError(str(error)) from None
    if head is None:
        raise Stopped({"note": "stopped; the checkpoint can be taken up by a retry"})
    context.check_stop()
    measured = skills.measure(loaded, spec.measure_seed, spec.measure, context.events.note)
    size = bundle.finish(loaded, recipe, measured)
    context.run.write_json("skills.json", measured)
    if size > bundle.SIZE_LIMIT:
        context.events.note(f"the folder has {size} bytes, more than {bundle.SIZE_LIMIT}", "warning")
    return {
        "model": str(context.run.file("model")),
        "bytes": size,
        "naming": measured["naming"]["all"]["rate"],
        "valid": measured["counting"]["valid"]["rate"],
        "all_correct": measured["counting"]["all_correct"]["rate"],
        "partial": measured["counting"]["partial"]["rate"],
        **{f"question_{kind}": rate["rate"] for kind, rate in measured["questions"].items()},
    }


KIND = JobKind("model", "Train the bundled model", ModelSpec, run, estimate=_estimate, needs=("torch", "transformers"))
