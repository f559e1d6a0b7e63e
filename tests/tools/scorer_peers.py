"""Our scorers beside lmms-eval's own code, on random answers.

    pip install --no-deps --target FOLDER lmms-eval==0.7.3
    python tests/tools/scorer_peers.py FOLDER [-n 200] [--seed 1]

The functions are taken out of lmms-eval's files one by one, since importing its modules wants all of its dependencies.
A line for each scorer; every difference is printed. Where lmms-eval chooses at random, ours must say "no choice".
"""

from __future__ import annotations

import argparse
import ast
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from vlmconsole.scoring.registry import find_scorer

CHOOSE = "parse_mmmu_multi_choice_response"
WORDS = ["total", "12", "Main", "Street", "1,250.00", "red", "circle", "café", "no", "30%", "a", "the", "TOTAL", "3.5"]
CHOICES = {"A": "a red circle", "B": "a blue square", "C": "two circles", "D": "nothing"}
FRAMES = ["{}", "({})", "{}.", "Answer: {}", "{}) it is", "The correct option is {}.", "I think ({}) or ({})", "{} {}"]


class _Guess(Exception):
    """lmms-eval's parser chose at random."""


def taken(folder: Path, file: str, *names: str, **known: Any) -> dict[str, Any]:
    """The functions called `names` of a file of lmms-eval, run with what they need."""
    tree = ast.parse((folder / "lmms_eval" / file).read_text(encoding="utf-8"))
    body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    for node in body:
        node.decorator_list = []  # their registry of metrics
    module: dict[str, Any] = dict(known)
    exec(compile(ast.Module(body=body, type_ignores=[]), file, "exec"), module)
    return module


class _NoDice:
    @staticmethod
    def choice(_: Any) -> Any:
        raise _Guess


def phrase(rng: random.Random) -> str:
    """A few words, some of them with an edit."""
    text = " ".join(rng.choices(WORDS, k=rng.randint(1, 4)))
    for _ in range(rng.randint(0, 2)):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(["", "x", " ", "."]) + text[at + rng.randint(0, 1) :]
    return text


def anls(folder: Path, rng: random.Random) -> tuple[Any, Any, Any]:
    """(case, theirs, ours)."""
    module = taken(folder, "api/metrics.py", "anls", "levenshtein_distance")
    answers = [phrase(rng) for _ in range(rng.randint(1, 3))]
    given = phrase(rng) if rng.random() < 0.5 else rng.choice(answers) + rng.choice(["", "x", "."])
    theirs = module["anls"](answers, [given])["anls"]
    return (given, answers), round(theirs, 9), round(find_scorer("anls").score(given, answers).score, 9)


def relaxed(folder: Path, rng: random.Random) -> tuple[Any, Any, Any]:
    """(case, theirs, ours)."""
    module = taken(folder, "tasks/chartqa/utils.py", "relaxed_correctness")
    truth = rng.choice([f"{rng.uniform(-50, 500):.2f}", str(rng.randint(0, 99)), f"{rng.randint(1, 99)}%", phrase(rng)])
    number = truth.rstrip("%").replace(".", "", 1).lstrip("-").isdigit()
    near = f"{float(truth.rstrip('%')) * rng.uniform(0.9, 1.1):.4g}" if number else phrase(rng)
    given = rng.choice([truth, truth.upper(), near, near + "%"])
    return (
        (given, truth),
        bool(module["relaxed_correctness"](given, truth)),
        find_scorer("relaxed").score(given, truth).correct,
    )


def choice(folder: Path, rng: random.Random) -> tuple[Any, Any, Any]:
    """(case, theirs, ours); None where theirs guesses."""
    module = taken(folder, "tasks/_task_utils/mmmu_mcq_utils.py", CHOOSE, random=_NoDice, np=np)
    text = rng.choice(FRAMES).replace("{}", "\0")
    while "\0" in text:
        text = text.replace("\0", rng.choice([*CHOICES, rng.choice(list(CHOICES.values()))]), 1)
    if rng.random() < 0.3:
        text = f"{phrase(rng)} and I see {rng.choice(list(CHOICES.values()))} in the middle {phrase(rng)}"
    try:
        theirs: Any = module[CHOOSE](text, list(CHOICES), CHOICES)
    except _Guess:
        theirs = None
    ours = find_scorer("choice").score(text, "A", {"choices": CHOICES}).details["choice"]
    return text, theirs, ours


def boxes(folder: Path, rng: random.Random) -> tuple[Any, Any, Any]:
    """(case, theirs, ours)."""
    module = taken(folder, "tasks/refcoco/utils_rec.py", "compute_iou")

    def box() -> list[float]:
        x, y = rng.uniform(0, 50), rng.uniform(0, 50)
        return [x, y, x + rng.uniform(1, 60), y + rng.uniform(1, 60)]

    first, second = box(), box()
    ours = find_scorer("boxes").score(first, second).details["iou"]
    return (first, second), round(module["compute_iou"](first, second), 9), round(ours, 9)


PEERS: dict[str, Callable[[Path, random.Random], tuple[Any, Any, Any]]] = {
    "anls": anls,
    "relaxed": relaxed,
    "choice": choice,
    "boxes": boxes,
}


def differences(folder: Path, name: str, n: int, seed: int) -> Iterator[tuple[Any, Any, Any]]:
    """The cases in which the two are not the same."""
    rng = random.Random(seed)
    for _ in range(n):
        case, theirs, ours = PEERS[name](folder, rng)
        if theirs != ours:
            yield case, theirs, ours


def main() -> None:
    """Print a line a scorer, and each difference."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("-n", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    for name in PEERS:
        unlike = list(differences(chosen.folder, name, chosen.n, chosen.seed))
        print(f"{name}: {chosen.n - len(unlike)} of {chosen.n} the same")
        for case, theirs, ours in unlike:
            print(f"    {case!r}: theirs {theirs!r}, ours {ours!r}")


if __name__ == "__main__":
    main()
