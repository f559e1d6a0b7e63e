"""The development pass of a training: it chooses among epochs, and is no baseline of anything."""

import time
from typing import TYPE_CHECKING, Any

from vlmconsole.data.scored import score_example
from vlmconsole.gates.samples import Sample, asked_hash, images_hash
from vlmconsole.jobs.contract import JobError
from vlmconsole.runs.events import json_line
from vlmconsole.runs.folder import RunFolder, write_atomic
from vlmconsole.training import selection
from vlmconsole.training.generation import Generated, answers, prompt_of

if TYPE_CHECKING:
    from vlmconsole.data.example import Example
    from vlmconsole.jobs.sft_run import Teacher


def develop(teacher: "Teacher", epoch: int) -> None:
    """Answer every development question with the adapter as it is now, and write the epoch's samples at once.

    A kill in the middle leaves no half file: the pass is made again. Raises Stopped.
    """
    began, context, dev = time.monotonic(), teacher.context, teacher.dev
    asks = [prompt_of(example) for example in dev]
    predictions: list[dict[str, Any]] = []
    step = teacher.course.done
    total = teacher.course.plan.steps

    def look(done: int, of: int) -> None:
        context.events.progress(step, total, note=f"development after epoch {epoch}: {done} of {of}")

    answered = answers(
        teacher.answering,
        asks,
        max_new_tokens=teacher.spec.max_new_tokens,
        batch=teacher.spec.dev_batch,
        on_progress=look,
        stopping=context.stopping,
    )
    for example, answer in zip(dev, answered, strict=False):
        predictions.append(_sample(teacher, example, answer, epoch))
    context.check_stop()
    if len(predictions) != len(dev):
        raise JobError(
            f"Only {len(predictions)} of {len(dev)} development questions were answered after epoch {epoch}."
        )
    data = b"".join(json_line(line) for line in predictions)
    write_atomic(teacher.run_folder.file(selection.development_file(epoch)), data)
    for example, line in list(zip(dev, predictions, strict=True))[: teacher.spec.shown]:
        _show(teacher, example, line, epoch, step)
    right, reward = (
        sum(line["all_correct"] for line in predictions),
        sum(line["reward"] for line in predictions) / len(predictions),
    )
    context.events.metric("development mean reward", reward, step=step)
    context.events.metric("development all-correct", 100 * right / len(predictions), step=step, unit="%")
    context.events.note(
        f"epoch {epoch}: development {right} of {len(predictions)} all-correct, mean reward {reward:.4f}, "
        f"{time.monotonic() - began:.0f} s ({selection.NOT_A_BASELINE})"
    )


def read_rewards(run: RunFolder, epoch: int) -> list[float]:
    """Return the rewards of an epoch's development samples, in the order of the rows."""
    return [float(line["reward"]) for line in run.read_jsonl(selection.development_file(epoch))]


def _sample(teacher: "Teacher", example: "Example", answer: Generated, epoch: int) -> dict[str, Any]:
    scored = score_example(example, answer.text, teacher.spec.scorer)
    sample = Sample(
        id=example.id,
        group=example.split,
        picture_sha256=images_hash(example.image_sha256s),
        pixel_sha256=images_hash(example.pixel_sha256s),
        tensor_sha256=answer.tensor_sha256,
        prompt_sha=asked_hash(example),
        answer=answer.text,
        token_ids=tuple(answer.token_ids),
        truth=example.truth,
        valid=scored.valid,
        all_correct=scored.all_correct,
        partial=scored.partial,
        reward=scored.reward,
        batch=answer.batch,
        t=time.time(),
    )
    more = {"epoch": epoch, "finish": answer.finish, "label": "not a baseline"}
    unset = {key for key in ("scorer", "options", "dataset", "split") if not getattr(sample, key)}
    return {**sample.model_dump(mode="json", exclude=unset), **more}


def _show(teacher: "Teacher", example: "Example", line: dict[str, Any], epoch: int, step: int) -> None:
    """One development example with its answer, for whoever watches."""
    names = [f"pictures/{sha[:16]}.png" for sha in example.image_sha256s]
    for name, data, picture in zip(names, example.images, example.pictures(), strict=True):
        path = teacher.run_folder.file(name)
        if not path.exists():
            path.parent.mkdir(mode=0o700, exist_ok=True)
            if data.startswith(b"\x89PNG"):
                write_atomic(path, data)
            else:
                picture.image().save(path)
    teacher.context.events.emit(
        "rollout",
        step=step,
        epoch=epoch,
        uid=example.id,
        picture=names[0] if names else None,
        **({"pictures": names} if len(names) > 1 else {}),
        truth=example.truth,
        answer=line["answer"],
        reward=line["reward"],
        advantage=None,
        right=line["all_correct"],
        label="development, not a baseline",
    )
