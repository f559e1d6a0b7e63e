"""GRPO in the worker's own process: the loop, its checkpoints, and the proof that the export is what trained."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmconsole.data.dataset import manifest_digest
from vlmconsole.data.example import Example, read_examples
from vlmconsole.data.scored import common_scorer
from vlmconsole.data.splits import LeakError, PictureIndex
from vlmconsole.jobs.contract import Context, JobError, Stopped
from vlmconsole.jobs.data import LOADING, course, examined, ready
from vlmconsole.jobs.grpo_evidence import (
    TRAINING,
    GrpoEvidence,
    RolloutAnswer,
    first_and_last,
    reward_facts,
    unchanged,
)
from vlmconsole.jobs.grpo_settings import (
    LEARNING,
    GrpoSpec,
    check_rewardable,
    has_masters,
    learning,
    planned_work,
    reward_parts,
)
from vlmconsole.jobs.memory_plan import memory_plan, say_peak
from vlmconsole.jobs.training_end import say_outcome
from vlmconsole.measure.machine import hardware
from vlmconsole.models.door import door
from vlmconsole.runs.conditions import Conditions, another_prompt
from vlmconsole.scoring.learning import TrainingOutcome, grpo_causes, training_outcome
from vlmconsole.scoring.rewards import Reward

if TYPE_CHECKING:
    from vlmconsole.training.grpo_train import Taken, Trainer

CHECKPOINT = "checkpoint.pt"
NOT_A_BASELINE = "not a baseline: another backend and other settings than a paired evaluation"


def train(context: Context, spec: GrpoSpec) -> dict[str, Any]:
    """Train and export. Takes up an earlier attempt's checkpoint; raises JobError with the reason, or Stopped."""
    import torch

    from vlmconsole.training import bases, checkpoint, export
    from vlmconsole.training.adapters.provenance import weights_sha256
    from vlmconsole.training.grpo_train import GrpoTraining, Trainer
    from vlmconsole.training.model import at_once, load
    from vlmconsole.training.rewards import failures, keep_reward

    torch.set_num_threads(spec.threads)
    folder = bases.answering_base(spec.base)
    device = bases.device_for(spec.device)
    precision = bases.precision_for(spec.precision, device)
    dataset, digest = ready_data(context, spec.data, learning(spec), spec.steps)
    rows, heldout = split(dataset, spec.train_split), split(dataset, spec.validation_split)
    for example in (*rows, *(heldout[: spec.validation] if spec.validate_every or spec.score_start else ())):
        check_rewardable(example, spec)
    refuse_leaks(rows, context)
    loaded = load(folder, dtype=precision, device=device)
    eyes = export.eyes_sha256(loaded.model)
    settings = GrpoTraining(
        questions=spec.questions,
        answers=spec.answers,
        temperature=spec.temperature,
        max_new_tokens=spec.max_new_tokens,
        rate=spec.lr,
        weight_decay=spec.weight_decay,
        max_norm=spec.max_norm,
        clip=spec.clip,
        passes=spec.passes,
        micro=spec.micro,
        seed=spec.seed,
        scorer=spec.scorer or common_scorer(rows),
    )
    prompt = door(folder).facts()
    reward = Reward(parts) if (parts := reward_parts(spec)) else None
    identity = {
        "settings": asdict(settings),
        "base_sha256": weights_sha256(folder),
        "data": {dataset.name: digest},
        "split": spec.train_split,
        "precision": precision,
        "threads": spec.threads,
        **({"float32_masters": True} if has_masters(spec, precision) else {}),
        **({"reward": reward.identity()} if reward else {}),
        **another_prompt(prompt),
    }
    if reward is not None:
        keep_reward(context.run, reward)
    conditions = _conditions(spec, bases.base_name(spec.base), identity, device, prompt)
    context.run.write_json("conditions.json", conditions)
    trainer = Trainer(loaded, rows, settings, masters=has_masters(spec, precision), reward=reward)
    evidence = GrpoEvidence(context.run, spec.steps)
    _take_up(context, trainer, evidence, identity)

    def keep() -> None:
        checkpoint.save(
            context.run.file(CHECKPOINT),
            {"identity": identity, **trainer.state()},
            step=trainer.step,
            holds=["weights", "AdamW moments", "random generators", "step"],
            resumable=True,
        )

    if spec.score_start and trainer.step == 0:
        _validate(context, trainer, heldout[: spec.validation], spec, 0)
    while trainer.step < spec.steps:
        if context.stopping():
            keep()
            raise Stopped({"steps": trainer.step, "note": f"stopped; a retry resumes from step {trainer.step}"})
        started = time.monotonic()
        try:
            step = trainer.take()
        except FloatingPointError as error:
            kept = "the last checkpoint is whole" if context.run.file(CHECKPOINT).exists() else "no step was kept yet"
            raise JobError(
                f"step {trainer.step + 1}: {error}; the step was not applied, {kept}.",
                "Lower lr, or start from another seed." if trainer.step else at_once(loaded.model, spec.base),
                code="step-diverged",
            ) from None
        if failed := failures(rollout.scored for rollout in step.rollouts):
            evidence.unrewarded(step.number, failed, len(step.rollouts))
        evidence.step(
            _line(step, spec, time.monotonic() - started),
            [_as_rollout(rollout, each_own=not settings.scorer) for rollout in step.rollouts],
        )
        last = spec.score_start and step.number == spec.steps
        if last or (spec.validate_every and step.number % spec.validate_every == 0):
            _validate(context, trainer, heldout[: spec.validation], spec, step.number)
        if step.number % spec.checkpoint_every == 0 or step.number == spec.steps:
            keep()
    return _finish(context, spec, trainer, folder, heldout, eyes, identity)


def ready_data(context: Context, name: str, then: float, steps: int) -> tuple[Path, str]:
    """Return the folder of a dataset (made already, or by its recipe now) in which nothing is wrong, and its digest.

    `then`: expected seconds of the training of so many `steps`, whose phase follows.
    """
    course(context, [name], {LEARNING: then}, examines=True)
    folder = ready(context, name)
    digest = manifest_digest(examined(context, folder))
    context.events.phase(LEARNING)
    context.events.progress(0, steps, note=LOADING)
    return folder, digest


def split(dataset: Path, name: str) -> list[Example]:
    """Return the examples of one split. Raises JobError naming the splits there are."""
    path = dataset / f"{name}.parquet"
    if not path.exists():
        splits = ", ".join(sorted(file.stem for file in dataset.glob("*.parquet")))
        raise JobError(f"{dataset.name} has no split “{name}” (there are: {splits})", code="split-missing")
    return list(read_examples(path))


def refuse_leaks(examples: list[Example], context: Context) -> None:
    """Raises LeakError when an image to be trained on stands in a test split of any dataset of this lab."""
    hashes = [value for example in examples for value in (*example.image_sha256s, *example.pixel_sha256s)]
    for known in PictureIndex(context.places.datasets).find(hashes):
        if known.role == "test":
            raise LeakError(
                f"An image to be trained on is the test image {known.place}.",
                "Take it out of the training split: what was trained on cannot test.",
            )


def _take_up(context: Context, trainer: "Trainer", evidence: GrpoEvidence, identity: dict[str, Any]) -> None:
    from vlmconsole.training import checkpoint

    earlier = context.earlier
    if earlier is None:
        return
    if not earlier.file(CHECKPOINT).exists():
        context.events.note(f"{earlier.name} kept no checkpoint yet: starts anew", "warning")
        return
    state = checkpoint.read(earlier.file(CHECKPOINT))
    if state.get("identity") != identity:
        differing = [key for key, value in identity.items() if (state.get("identity") or {}).get(key) != value]
        raise checkpoint.CheckpointError(
            f"The checkpoint of {earlier.name} was made under other conditions ({', '.join(differing)}).",
            "Start the preset anew: resuming would mix two runs.",
            code="conditions-differ",
        )
    try:
        trainer.restore(state)
    except (KeyError, ValueError, RuntimeError) as error:
        raise checkpoint.CheckpointError(
            f"The checkpoint of {earlier.name} does not fit this model: {error}."
        ) from None
    checkpoint.copy(earlier.file(CHECKPOINT), context.run.file(CHECKPOINT))
    evidence.take_over(earlier, trainer.step)
    context.events.note(f"resumes exactly from step {trainer.step} of {earlier.name} (weights, AdamW, generators)")


def _line(step: "Taken", spec: GrpoSpec, seconds: float) -> dict[str, Any]:
    import statistics

    from vlmconsole.training.rewards import part_means

    rewards = [rollout.scored.reward for rollout in step.rollouts]
    lengths = [len(rollout.tokens) for rollout in step.rollouts]
    last = step.passes[-1]
    return {
        "step": step.number,
        "reward_mean": sum(rewards) / len(rewards),
        "reward_std": statistics.stdev(rewards),
        "loss": last.loss,
        "grad_norm": last.grad_norm,
        "entropy": last.entropy,
        "clip_fraction": last.clip_fraction,
        "zero_advantage": step.zero_advantage,
        "valid": sum(rollout.scored.valid for rollout in step.rollouts) / len(rewards),
        "all_correct": sum(rollout.scored.all_correct for rollout in step.rollouts) / len(rewards),
        "length_mean": sum(lengths) / len(lengths),
        "lengths": lengths,
        "cut_off": sum(rollout.finish == "length" for rollout in step.rollouts),
        **({"reward_parts": parts} if (parts := part_means([rollout.scored for rollout in step.rollouts])) else {}),
        "lr": spec.lr,
        "seconds": round(seconds, 4),
    }


def _as_rollout(sampled: Any, *, each_own: bool) -> RolloutAnswer:
    return RolloutAnswer(
        sampled.example,
        sampled.group,
        sampled.text,
        sampled.tokens,
        sampled.finish,
        sampled.example.truth,
        sampled.scored.reward,
        sampled.advantage,
        sampled.scored.valid,
        sampled.scored.reason,
        sampled.example.scorer if each_own else "",
        sampled.scored.details.get("parts"),
    )


def _validate(context: Context, trainer: "Trainer", examples: list[Example], spec: GrpoSpec, step: int) -> None:
    from vlmconsole.training.grpo_train import greedy_answers

    predictions = greedy_answers(trainer.loaded, examples, spec.max_new_tokens)
    scored = [
        trainer.judge(example, prediction.text) for prediction, example in zip(predictions, examples, strict=True)
    ]
    mean = sum(prediction.reward for prediction in scored) / len(scored)
    right = sum(prediction.all_correct for prediction in scored)
    line = {"step": step, "n": len(examples), "reward_mean": mean, "all_correct": right, "label": NOT_A_BASELINE}
    if spec.score_start:
        line |= {
            "rewards": [answer.reward for answer in scored],
            "samples": [
                {"answer": said.text, "truth": example.truth, "valid": mark.valid, "reason": mark.reason}
                for said, example, mark in zip(predictions, examples, scored, strict=True)
            ],
        }
    context.run.append_jsonl("validation.jsonl", line)
    context.events.metric("validation reward (not a baseline)", mean, step=step)
    context.log(
        f"validation after step {step}, not a baseline: {right} of {len(examples)} all right, reward {mean:.3f}"
    )


def _conditions(
    spec: GrpoSpec, base: str, identity: dict[str, Any], device: str, prompt: dict[str, str]
) -> dict[str, Any]:
    import torch
    import transformers

    return Conditions(
        hardware=hardware(),
        engine="in-process GRPO",
        engine_version=f"torch {torch.__version__}, transformers {transformers.__version__}",
        model=base,
        model_sha256=identity["base_sha256"],
        precision=identity["precision"],
        temperature=spec.temperature,
        seed=spec.seed,
        **prompt,
        max_tokens=spec.max_new_tokens,
        n=spec.steps * spec.questions * spec.answers,
        settings={
            **identity["settings"],
            "data": identity["data"],
            "device": device,
            "threads": spec.threads,
            **{key: identity[key] for key in ("float32_masters", "reward") if key in identity},
        },
    ).known()


def _finish(
    context: Context,
    spec: GrpoSpec,
    trainer: "Trainer",
    folder: Path,
    heldout: list[Example],
    eyes: str,
    identity: dict[str, Any],
) -> dict[str, Any]:
    """Export, then load what was exported and ask it the same questions: it must be the model that trained."""
    from vlmconsole.training import bases, export
    from vlmconsole.training.adapters.provenance import Provenance, weights_sha256, write_provenance
    from vlmconsole.training.grpo_train import greedy_answers
    from vlmconsole.training.model import load

    loaded, target = trainer.loaded, context.run.file("model")
    base = bases.base_name(spec.base)
    export.export_model(loaded, folder, target, _card(context, spec, base))
    precision, device = identity["precision"], str(loaded.model.device)
    write_provenance(
        target,
        Provenance(
            kind="grpo",
            base=base,
            base_sha256=identity["base_sha256"],
            precision=precision,
            rank=0,
            alpha=0,
            data=identity["data"],
            run=context.run.name,
            step=trainer.step,
            seed=spec.seed,
            resumable=False,
            prompt_sha256=door(folder).prompt_sha256,
        ),
    )
    again = load(target, dtype=precision, device=device)
    asked = heldout[: spec.reload_check]
    token_ids = [
        [model.token_ids for model in greedy_answers(model, asked, spec.max_new_tokens)] for model in (loaded, again)
    ]
    same = [a == b for a, b in zip(*token_ids, strict=True)]
    stored = export.summary(export.changes(loaded.model.state_dict(), again.model.state_dict()))
    del again
    first = load(folder, dtype=precision, device=device)
    rows = export.changes(first.model.state_dict(), loaded.model.state_dict())
    moved = export.summary(rows)
    eyes_same = export.eyes_sha256(loaded.model) == eyes and moved["visual"]["numbers_changed"] == 0
    context.run.write_json("weights.json", {"against": "the base", **moved, "tensors": rows})
    if not eyes_same:
        raise JobError("the vision tower changed although it was frozen: the run is not what it says, see weights.json")
    if not all(same) or stored["language"]["numbers_changed"] or stored["visual"]["numbers_changed"]:
        raise JobError(f"the exported model is not the trained one: {same.count(False)} of {len(same)} answers differ")
    copies = _copies(trainer, first.model) if trainer.masters is not None else None
    say_moved(context, moved["language"], spec.lr, precision, copies)
    gpu = device.startswith("cuda")
    plan = memory_plan(planned_work(spec, gpu, context.places), "cuda" if gpu else "cpu")
    outcome = _outcome(context)
    reward, gradient = first_and_last(context.run, "reward_mean"), first_and_last(context.run, "grad_norm")
    return {
        "model": str(target),
        "model_sha256": weights_sha256(target),
        "resume": export.WEIGHTS_ONLY,
        "base": base,
        "base_sha256": identity["base_sha256"],
        "precision": precision,
        "data": identity["data"],
        "steps": trainer.step,
        "answers": trainer.step * spec.questions * spec.answers,
        **({"outcome": outcome.to_json()} if outcome else {}),
        "reward_first": reward[0],
        "reward_last": reward[1],
        "reward_mean": reward[2],
        "zero_advantage": first_and_last(context.run, "zero_advantage")[2],
        **reward_facts(context.run),
        "grad_norm_first": gradient[0],
        "grad_norm_last": gradient[1],
        "language_tensors_changed": f"{moved['language']['tensors_changed']} of {moved['language']['tensors']}",
        "language_numbers_changed": export.numbers_moved(moved["language"]),
        "language_change_norm": moved["language"]["change_norm"],
        "language_rounding_norm": moved["language"]["rounding_norm"],
        **({"float32_numbers_changed": export.numbers_moved(copies)} if copies else {}),
        "vision_bit_identical": eyes_same,
        "reload_same_answers": f"{same.count(True)} of {len(same)}",
        "memory": say_peak(context, plan),
    }


def _outcome(context: Context) -> TrainingOutcome | None:
    """Say whether the last validation is above the first; None where the start was not validated."""
    validated = [line for line in context.run.read_jsonl("validation.jsonl") if line.get("rewards")]
    if len(validated) < 2 or validated[0]["step"] != 0:
        return None
    first, last = validated[0], validated[-1]
    causes = grpo_causes(list(context.run.read_jsonl(TRAINING)), last["samples"])
    outcome = training_outcome(first["rewards"], last["rewards"], causes, last["samples"])
    say_outcome(context, outcome)
    return outcome


def _copies(trainer: "Trainer", base: Any) -> dict[str, Any]:
    """How far the float32 copies moved from the base, summed up."""
    from vlmconsole.training import export

    after = trainer.stepped()
    before = {name: p.float() for name, p in base.named_parameters() if name in after}
    return dict(export.summary(export.changes(before, after))["language"])


def say_moved(
    context: Context, half: dict[str, Any], rate: float, precision: str, copies: dict[str, Any] | None = None
) -> None:
    """How much of the language half a training moved, as a note; a warning where its steps were rounded away.

    copies: the same of the float32 copies that were stepped, if there are any: they lose nothing, and the export holds
    what of it reaches the next number of its own precision.
    """
    from vlmconsole.training import export

    moved = export.numbers_moved(half)
    lost = export.rounded_away(half, rate, precision) if copies is None else ""
    if (copies or half)["numbers_changed"] == 0:
        context.events.note(unchanged(context.run), "warning")
    elif copies is not None:
        stepped = export.numbers_moved(copies)
        context.events.note(f"trained weights: {stepped} of the float32 copies changed, {moved} in {precision}")
    else:
        context.events.note(lost or f"trained weights: {moved} of the numbers changed", "warning" if lost else "info")


def _card(context: Context, spec: GrpoSpec, base: str) -> str:
    return (
        f"# {base} after {spec.steps} GRPO steps\n\n"
        f"Language weights trained by the run `{context.run.name}`, vision tower unchanged. `provenance.json` names "
        "the base, the data and the seed.\n\n"
        "**Weights only: cannot resume exactly.** Training can be continued exactly only from the run's own "
        f"`{CHECKPOINT}`, which holds AdamW's moments and the random generators as well.\n\n"
        "Whether it is better than its base was not measured here: that needs a paired evaluation.\n"
    )
