"""Train the bundled model from nothing: `vlmconsole run model-tiny`."""

from __future__ import annotations

import itertools
import shutil
from typing import TYPE_CHECKING, Any

from pydantic import Field

from vlmconsole.jobs.contract import Context, Estimate, JobError, JobKind, Spec, Stopped, not_installed
from vlmconsole.text.numbers import percent

if TYPE_CHECKING:
    from vlmconsole.toy.lessons import LessonRecipe

CHECKPOINT = "checkpoint.pt"


class ModelSpec(Spec):
    """The recipe (see `vlmconsole.toy.lessons.Recipe`) and how often to look up from it."""

    seed: int = Field(7, ge=0, description="Seed of the weights and of every scene")
    threads: int = Field(2, ge=1, le=64, description="CPU threads; results depend on it in the last digits")
    batch: int = Field(24, ge=2, le=256, description="Images in one step")
    eyes_steps: int = Field(1200, ge=1, description="Steps of the vision phase")
    eyes_rate: float = Field(1.5e-3, gt=0, description="AdamW learning rate of the vision phase")
    language_steps: int = Field(500, ge=1, description="Steps of the question-and-answer phase")
    language_rate: float = Field(1.5e-3, gt=0, description="AdamW learning rate of that phase")
    most_counted: int = Field(3, ge=0, le=12, description="Largest count it is ever shown")
    count_share: int = Field(17, ge=0, description="Counting images in a batch")
    warm_up: int = Field(30, ge=0, description="Steps of rising learning rate, each phase")
    eyes_share: float = Field(0.5, ge=0, description="Weight of the naming loss in the language phase")
    refresh: int = Field(8, ge=0, description="Eyes scenes seen beside each language batch")
    question_steps: int = Field(500, ge=1, description="Steps of a stage of short questions")
    question_rate: float = Field(1.5e-3, gt=0, description="AdamW learning rate of those stages")
    question_batch: int = Field(20, ge=2, le=256, description="Images a step of that phase")
    question_counts: int = Field(5, ge=0, description="Counting images among them")
    question_turns: int = Field(8, ge=1, description="Questions about one image")
    question_refresh: int = Field(12, ge=0, description="Eyes scenes seen beside each question batch")
    checkpoint_every: int = Field(50, ge=1, description="Steps between checkpoints")
    measure: int = Field(512, ge=16, description="Fresh scenes for each skill, four times as many for naming")
    measure_seed: int = Field(1, ge=0, description="Seed of those scenes")


#: Seconds a step took in each phase of one run on two cores of an AMD EPYC (means; of 24 pictures, of questions 20).
TOOK = {
    "eyes": 0.55,
    "language": 1.05,
    "questions": 1.08,
    "sharpen": 0.55,
    "names": 0.53,
    "all": 0.57,
    "polish": 0.52,
    "sizes": 0.61,
    "rest": 0.66,
}
MEASURING, PARTS = "measuring", 4
A_SCENE = 0.25  # seconds of measuring for each of `measure`


def recipe_of(spec: ModelSpec) -> LessonRecipe:
    """Return the recipe without how often to look up from it."""
    from vlmconsole.toy.lessons import LessonRecipe

    return LessonRecipe(**spec.model_dump(exclude={"checkpoint_every", "measure", "measure_seed"}))


def phases(spec: ModelSpec) -> dict[str, float]:
    """Seconds that each phase is expected to take, in their order."""
    from vlmconsole.toy.lessons import STAGES, phase_steps

    asked = {stage.name for stage in STAGES}
    slower = 2 / min(2, spec.threads)
    took = {
        name: slower * steps * TOOK[name] * (spec.question_batch / 20 if name in asked else spec.batch / 24)
        for name, steps in phase_steps(recipe_of(spec)).items()
    }
    return {**took, MEASURING: slower * A_SCENE * spec.measure}


def _estimate(spec: ModelSpec) -> Estimate:
    return Estimate(
        seconds=sum(phases(spec).values()),
        memory_bytes=1_200_000_000,
        disk_bytes=40_000_000,
        note="from a run on two cores of an AMD EPYC",
    )


def run(context: Context, spec: ModelSpec) -> dict[str, Any]:
    """Train, measure, and leave the model folder `model/`. Resumes from an earlier attempt's checkpoint."""
    try:
        from vlmconsole.toy import bundle, lessons, pretrain, skills
    except ImportError as error:
        raise not_installed(error, "training", "train") from None

    recipe, events = recipe_of(spec), context.events
    events.course(phases(spec))
    checkpoint = context.run.file(CHECKPOINT)
    if context.earlier is not None and not checkpoint.exists() and context.earlier.file(CHECKPOINT).exists():
        shutil.copyfile(context.earlier.file(CHECKPOINT), checkpoint)
        events.note(f"resumes from the checkpoint of {context.earlier.name}")
    before, total = {}, 0
    for name, steps in lessons.phase_steps(recipe).items():
        before[name] = total
        total += steps

    def report(point: pretrain.LossPoint) -> None:
        done = before[point.phase] + point.step
        right = "objects named right" if point.phase in ("eyes", *lessons.LOOKS) else "answer tokens right"
        note = f"loss {point.loss:.3f}, {right} {percent(point.accuracy)}"
        events.phase(point.phase)
        events.progress(point.step, point.steps, note=note)
        events.metric(f"{point.phase} loss", point.loss, step=done)
        events.metric(f"{point.phase} accuracy", point.accuracy, step=done)
        events.metric("seconds per step", point.seconds_per_step, step=done, unit="s")
        context.log(f"{point.phase}: step {done} of {total}, {note}, {point.seconds_per_step:.2f} s a step")

    parts = itertools.count()

    def part(text: str) -> None:
        events.note(text)
        events.progress(next(parts), PARTS, "part")

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
        raise Stopped({"note": "stopped; a retry resumes from the checkpoint"})
    context.check_stop()
    events.phase(MEASURING)
    measured = skills.measure(loaded, spec.measure_seed, spec.measure, part)
    size = bundle.finish(loaded, recipe, measured)
    context.run.write_json("skills.json", measured)
    if size > bundle.SIZE_LIMIT:
        events.note(f"the folder has {size} bytes, more than {bundle.SIZE_LIMIT}", "warning")
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
