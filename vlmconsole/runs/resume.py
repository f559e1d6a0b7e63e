"""Where a retry of a run resumes, from its files alone: a checkpoint's step, or the answers that are written."""

from __future__ import annotations

from pathlib import Path

from vlmconsole.runs.folder import RunFolder
from vlmconsole.text.counts import many
from vlmconsole.text.numbers import whole

CHECKPOINT = "checkpoint.pt"
NOTE = "checkpoint.json"  # beside it, with its step
ANSWERS = ("before.jsonl", "after.jsonl")


def resume_point(run: RunFolder) -> str:
    """`step 350`, `96 answers`, `a checkpoint`; "" where nothing of the kind is left.

    Of the run, or the nearest earlier attempt that left something.
    """
    seen: set[Path] = set()
    folder: RunFolder | None = run
    while folder is not None and folder.path not in seen:
        seen.add(folder.path)
        if point := _left(folder):
            return point
        earlier = folder.job().get("earlier")
        folder = RunFolder(Path(earlier)) if isinstance(earlier, str) and earlier else None
    return ""


def _left(run: RunFolder) -> str:
    if run.file(CHECKPOINT).exists():
        note = run.read_json(NOTE)
        step = whole(note.get("step")) if isinstance(note, dict) else None
        return f"step {step}" if step is not None else "a checkpoint"
    answers = sum(sum(1 for _ in run.read_jsonl(name)) for name in ANSWERS if run.file(name).exists())
    return many(answers, "answer") if answers else ""
