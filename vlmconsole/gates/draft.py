"""A first plan for a dataset, to be edited: its test splits as groups, limits left open, a guard."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmconsole.data.dataset import read_manifest
from vlmconsole.data.example import read_questions
from vlmconsole.errors import LabError
from vlmconsole.gates.power import BaseShare
from vlmconsole.text.numbers import percent
from vlmconsole.text.toml import toml_value


class DraftError(LabError):
    """No plan can be drafted for this dataset; the message says why."""

    exit_status = 2


@dataclass(frozen=True)
class DraftGroup:
    """One test split: n questions, all scored by one scorer; `options` only where they all have the same."""

    name: str
    split: str
    n: int
    scorer: str
    options: Mapping[str, Any]
    images: bool


def draft_groups(folder: Path) -> list[DraftGroup]:
    """Return the test splits of a dataset as groups. Raises DraftError without one, or where a split has several
    scorers.
    """
    manifest = read_manifest(folder)
    tests = [split for split, about in manifest["splits"].items() if about["role"] == "test"]
    if not tests:
        raise DraftError(
            f"{manifest['name']} has no test split: gates judge on tests only.",
            "Import it with --split train=80,dev=10,test=10, or a file of its own with --as test.",
            code="split-untested",
        )
    return [_group(folder, split) for split in tests]


def _group(folder: Path, split: str) -> DraftGroup:
    n, images, scorers, options = 0, False, set(), set()
    for example in read_questions(folder / f"{split}.parquet"):
        n, images = n + 1, images or bool(example.images)
        scorers.add(example.scorer)
        options.add(json.dumps(dict(example.options), sort_keys=True))
    if len(scorers) != 1 or scorers == {""}:
        what = f"{len(scorers)} scorers ({', '.join(sorted(scorers))})" if len(scorers) > 1 else "no scorer"
        raise DraftError(
            f"{folder.name}:{split} has {what}; a group of a plan has one.",
            "Import it anew with --scorer NAME.",
            code="scorer-several",
        )
    if n < 2:
        raise DraftError(f"{folder.name}:{split} has {n} examples, too few to judge.", code="examples-few")
    held = json.loads(options.pop()) if len(options) == 1 else {}
    return DraftGroup(split.removeprefix("test-"), split, n, scorers.pop(), held, images)


def draft(name: str, groups: list[DraftGroup], known: Mapping[str, BaseShare]) -> str:
    """Return the plan's TOML, with a comment on each limit to be filled in; `known` are the base's scores by group."""
    total = sum(group.n for group in groups)
    images = any(group.images for group in groups)
    file = f"{name}-gates.toml"
    lines = [
        f"# Gates for {name}: fill in each limit that is left open, then freeze the plan before the training:",
        f"#   vlmconsole gates freeze {file} --data {name} --base MODEL",
        "# Freezing says which change each gate sees, and which gates cannot fail or cannot pass.",
        f"title = {toml_value(f'Gates for {name}')}",
        'whose = "our own list"',
        'before = "the base model"',
        f"pictures = {toml_value(f'the test examples of {name}')}",
        'intervals = "bounded"  # hold their level at any n; "percentile": the bootstrap, from 32 examples on',
    ]
    if images:
        lines.append('blind = "swap"  # the same questions with another example\'s images; also grey, none')
    lines += [
        "",
        "[data]",
        f"recipes = [{toml_value(name)}]",
        "",
        "[generations]",
        f"evaluation = {2 * total}  # before and after",
        *([f"blind = {total}"] if images else []),
        "",
        "[seeds]",
        "training = [1]",
        "bootstrap = 0",
        "evaluation = 42",
        "",
        "[conditions]  # that both sides must have been measured under",
        "temperature = 0.0",
        "seed = 42",
        "max_tokens = 64",
    ]
    for group in groups:
        lines += ["", "[[groups]]", f"name = {toml_value(group.name)}", f"split = {toml_value(group.split)}"]
        lines += [f"n = {group.n}", f"scorer = {toml_value(group.scorer)}"]
        lines += [f"options = {toml_value(dict(group.options))}"] if group.options else []
    first, *others = groups
    lines += _gate(first, "score", "at_least", "share of 1 that the score must reach", known)
    lines += _gate(first, "score_gain_ci_low", "above", "", known, 0.0)
    lines += _gate(first, "valid", "at_least", "guard: share of answers in the task's form", known)
    if first.images:
        lines += _gate(first, "sight_gain_ci_low", "above", "", known, 0.0)
    for group in others:
        lines += _gate(group, "score_drop", "at_most", "guard: points of a hundred that may be lost", known)
    return "\n".join(lines) + "\n"


def _gate(
    group: DraftGroup, metric: str, key: str, about: str, known: Mapping[str, BaseShare], limit: float | None = None
) -> list[str]:
    """A gate: its limit, or an open one with what the base has."""
    share = known.get(group.name)
    kind = "valid" if metric == "valid" else "partial"
    base = f"; the base has {percent(share.shares[kind])} ({share.source})" if share and kind in share.shares else ""
    set_ = f"{key} = {limit}" if limit is not None else f"# {key} =   # {about}{base}"
    return ["", "[[gates]]", f"group = {toml_value(group.name)}", f'metric = "{metric}"', set_]
