"""A small real dataset, a plan over it, and runs to judge: real pictures, real hashes, answers by choice."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from vlmconsole.data.dataset import make_dataset
from vlmconsole.data.recipe import Recipe
from vlmconsole.data.rows import Row, read_rows
from vlmconsole.gates.binding import bind, freeze_for_run
from vlmconsole.gates.plan import Plan, parse_plan
from vlmconsole.gates.samples import prompt_hash
from vlmconsole.ledger.chain import Ledger
from vlmconsole.runs.folder import RunFolder
from vlmconsole.scoring.scorers import score

N = 10  # pictures a group
WRONG = '{"red_circles": 99, "blue_squares": 99}'

RECIPE = {
    "name": "small",
    "title": "a small dataset",
    "seed": 5,
    "splits": [
        {"name": "train", "role": "train", "parts": [{"group": "regular", "low": 0, "high": 1, "every": 2}]},
        {"name": "test-regular", "role": "test", "parts": [{"group": "regular", "low": 0, "high": 2, "count": N}]},
        {"name": "test-hollow", "role": "test", "parts": [{"group": "hollow", "low": 0, "high": 2, "count": N}]},
        {"name": "test-naming", "role": "test", "parts": [{"group": "naming", "count": N}]},
    ],
}

PLAN: dict[str, Any] = {
    "name": "small-plan",
    "title": "a small plan",
    "whose": "the tests' own",
    "before": "the base",
    "trained": [0, 7],
    "pictures": "synthetic, visible, non-overlapping shapes",
    "resamples": 999,
    "data": {"recipes": ["small"]},
    "generations": {"evaluation": 6 * N},
    "seeds": {"training": [1]},
    "conditions": {"temperature": 0.0, "max_tokens": 64},
    "groups": [
        {"name": "regular", "split": "test-regular", "n": N, "scorer": "counting"},
        {"name": "hollow", "split": "test-hollow", "n": N, "scorer": "counting"},
        {"name": "naming", "split": "test-naming", "n": N, "scorer": "naming", "base_at_least": 0.8},
    ],
    "gates": [
        {"group": "regular", "metric": "all_correct", "at_least": 0.8},
        {"group": "regular", "metric": "partial_drop", "at_most": 5.0},
        {"group": "hollow", "metric": "partial", "at_least": 0.8},
        {"group": "hollow", "metric": "partial_gain_ci_low", "above": 0.0},
        {"group": "naming", "metric": "partial_drop", "at_most": 5.0},
    ],
}
CONDITIONS = {"engine": "in-process", "model": "tiny", "precision": "float32", "temperature": 0.0, "max_tokens": 64}

Answers = Callable[[str, int, Row], str]  # (group, number in the group, row) → answer text


def recipe(**changes: Any) -> Recipe:
    return Recipe.model_validate({**RECIPE, **changes})


@cache
def _made() -> tuple[tempfile.TemporaryDirectory[str], Path]:
    folder = tempfile.TemporaryDirectory(prefix="vlmconsole-small-")
    return folder, make_dataset(recipe(), Path(folder.name) / "datasets")


def small_dataset(home: Path) -> Path:
    """The small dataset with its index in the lab at `home`: made once a session, copied since."""
    shutil.copytree(_made()[1].parent, home / "datasets", dirs_exist_ok=True)
    return home / "datasets" / "small"


def plan(**changes: Any) -> Plan:
    return parse_plan({**PLAN, **changes}, "test")


def right(first: int, of: dict[str, int] | None = None) -> Answers:
    """Right on the first `first` pictures of each group (or as `of` says), wrong on the others."""

    def answer(group: str, number: int, row: Row) -> str:
        wanted = (of or {}).get(group, first)
        wrong = WRONG if row.source.endswith("counting") else "nothing of the kind"
        return row.truth if number < wanted else wrong

    return answer


def sample(group: str, scorer: str, row: Row, answer: str, t: float) -> dict[str, Any]:
    """One line of before.jsonl or after.jsonl, scored as the evaluation scores it."""
    scored = score(scorer, answer, row.truth)
    return {
        "id": row.uid,
        "group": group,
        "picture_sha256": row.sha256,
        "pixel_sha256": row.pixel_sha256,
        "tensor_sha256": hashlib.sha256(b"tensor" + row.picture).hexdigest(),
        "prompt_sha": prompt_hash(row.question),
        "answer": answer,
        "token_ids": list(answer.encode()),
        "truth": row.truth,
        "valid": scored.valid,
        "all_correct": scored.all_correct,
        "partial": scored.partial,
        "reward": scored.reward,
        "http_ok": True,
        "batch": 0,
        "t": t,
    }


def write_run(home: Path, judged: Plan, before: Answers, after: Answers, *, bound: bool = True) -> RunFolder:
    """A run under `home`: plan frozen first, then both sides and their conditions."""
    dataset = small_dataset(home)
    run = RunFolder.create(home / "runs", kind="evaluate", preset="small", spec={}, title="test", home=home)
    ledger = Ledger(home / "ledger.jsonl")
    freeze_for_run(bind(judged, [dataset]) if bound else judged, run, home, ledger)
    for name, answers in (("before", before), ("after", after)):
        lines = []
        for group in judged.groups:
            for number, row in enumerate(read_rows(dataset / f"{group.split}.parquet")):
                text = answers(group.name, number, row)
                lines.append(sample(group.name, group.scorer, row, text, time.time() + 1))
        write_lines(run, f"{name}.jsonl", lines)
    run.write_json("conditions.json", {"before": CONDITIONS, "after": {**CONDITIONS, "adapter": "sft"}})
    return run


def lines_of(run: RunFolder, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.file(name).read_text().splitlines()]


def write_lines(run: RunFolder, name: str, lines: list[dict[str, Any]]) -> None:
    run.file(name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def evaluated(
    home: Path, first: int, second: int, change: Callable[[dict[str, Any]], None] = lambda _: None
) -> RunFolder:
    """A finished evaluation with so many of each group right before and after, each line changed."""
    run = write_run(home, plan(), right(first), right(second))
    for side in ("before", "after"):
        lines = lines_of(run, f"{side}.jsonl")
        for line in lines:
            line["scorer"] = "naming/1" if line["group"] == "naming" else "counting/1"
            change(line)
        write_lines(run, f"{side}.jsonl", lines)
    run.set_state("done")
    return run
