"""An answer to an example, scored as the example says, or by a scorer that the settings name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vlmconsole.data.example import Example
from vlmconsole.data.rows import DataError
from vlmconsole.errors import LabError
from vlmconsole.scoring.registry import find_scorer
from vlmconsole.scoring.scorers import Scored, ScoringError, read_truth, score


def scored_by(example: Example, scorer: str = "") -> tuple[str, Mapping[str, Any]]:
    """Return the scorer of an example's answers by name ("": its own), and its options."""
    name = scorer or example.scorer
    return name, example.options if name == example.scorer else {}


def score_example(example: Example, answer: object, scorer: str = "") -> Scored:
    """Score `answer` to the last question by `scorer` ("": the example's own, with its options).

    Raises ScoringError when the truth does not fit, UnknownScorerError and OptionsError.
    """
    name, options = scored_by(example, scorer)
    return score(name, answer, read_truth(name, example.truth), options)


def check_scorable(example: Example, scorer: str = "", more: Mapping[str, Any] | None = None) -> None:
    """Raise DataError, naming the example, unless `scorer` ("": its own) can judge answers to its last question.

    `more`: options beside the example's own, such as a plan's.
    """
    name, own = scored_by(example, scorer)
    try:
        if not name:
            raise ScoringError(f"no scorer is known for {example.source}")
        if why := find_scorer(name).check(read_truth(name, example.truth), {**own, **(more or {})}):
            raise ScoringError(f"the scorer {name} cannot judge its truth: {why}")
    except LabError as error:
        raise DataError(
            f"{example.id}: {error.message.rstrip('.')}.",
            "Name a scorer that fits in the setting scorer, or import the data with another --scorer.",
            code="truth-unfit",
        ) from None


def check_askable(example: Example, scorer: str = "", more: Mapping[str, Any] | None = None) -> None:
    """As :func:`check_scorable`, but one with neither truth nor scorer may be asked: nothing scores its answer."""
    if scorer or example.scorer or example.truth is not None:
        check_scorable(example, scorer, more)


def common_scorer(examples: Iterable[Example]) -> str:
    """Return the one scorer of all these examples, without options; "" where there are several, or options."""
    scorers = {example.scorer if not example.options else "" for example in examples}
    return scorers.pop() if len(scorers) == 1 else ""
