"""The development pass of a training: it chooses among epochs, and is no baseline of anything."""

import time
from typing import TYPE_CHECKING, Any

from vlmconsole.gates.samples import Sample, prompt_hash
from vlmconsole.jobs.contract import JobError
from vlmconsole.runs.events import json_line
from vlmconsole.runs.folder import RunFolder, write_atomic
from vlmconsole.scoring.scorers import score
from vlmconsole.training import selection
from vlmconsole.training.generation import Generated, Prompt, answers

if TYPE_CHECKING:
    from vlmconsole.data.rows import Row
    from vlmconsole.jobs.sft_run import Teacher


def develop(teacher: "Teacher", epoch: int) -> None:
    """Answer every development question with the adapter as it is now, and write the epoch's samples at once.

    A kill in the middle leaves no half file: the pass is made again. Raises Stopped.
    """
    began, context, dev = time.monotonic(), teacher.context, teacher.dev
    asks = [Prompt(row.uid, row.question, (row.image(),)) for row in dev]
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
    for row, answer in zip(dev, answered, strict=False):
        predictions.append(_sample(teacher, row, answer, epoch))
    context.check_stop()
    if len(predictions) != len(dev):
        raise JobError(
            f"Only {len(predictions)} of {len(dev)} development questions were answered after epoch {epoch}."
        )
    data = b"".join(json_line(line) for line in predictions)
    write_atomic(teacher.run_folder.file(selection.development_file(epoch)), data)
    for row, line in list(zip(dev, predictions, strict=True))[: teacher.spec.shown]:
        _show(teacher, row, line, epoch, step)
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
    """The rewards of an epoch's development samples, in the order of the rows."""
    return [float(line["reward"]) for line in run.read_jsonl(selection.development_file(epoch))]


def _sample(teacher: "Teacher", row: "Row", answer: Generated, epoch: int) -> dict[str, Any]:
    scored = score(teacher.spec.scorer, answer.text, row.truth)
    sample = Sample(
        id=row.uid,
        group=row.split,
        picture_sha256=row.sha256,
        pixel_sha256=row.pixel_sha256,
        tensor_sha256=answer.tensor_sha256,
        prompt_sha=prompt_hash(row.question),
        answer=answer.text,
        token_ids=tuple(answer.token_ids),
        truth=row.truth,
        valid=scored.valid,
        all_correct=scored.all_correct,
        partial=scored.partial,
        reward=scored.reward,
        batch=answer.batch,
        t=time.time(),
    )
    more = {"epoch": epoch, "finish": answer.finish, "label": "not a baseline"}
    return {**sample.model_dump(mode="json"), **more}


def _show(teacher: "Teacher", row: "Row", line: dict[str, Any], epoch: int, step: int) -> None:
    """One development picture with its answer, for whoever watches."""
    name = f"pictures/{row.sha256[:16]}.png"
    path = teacher.run_folder.file(name)
    if not path.exists():
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if row.picture.startswith(b"\x89PNG"):
            write_atomic(path, row.picture)
        else:
            row.image().save(path)
    teacher.context.events.emit(
        "rollout",
        step=step,
        epoch=epoch,
        uid=row.uid,
        picture=name,
        truth=row.truth,
        answer=line["answer"],
        reward=line["reward"],
        advantage=None,
        right=line["all_correct"],
        label="development, not a baseline",
    )
