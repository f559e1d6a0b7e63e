"""`choice`: one of several lettered options, named by its letter or by its text."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

from pydantic import Field, field_validator

from vlmconsole.scoring.scorer import Score, Scorer, ScorerExample, ScorerOptions

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MIN_WORDS = 6  # of an answer that is searched for an option's text inside it
_EDGES = ",.!?;:'\"*` \n\t\r"


class ChoiceOptions(ScorerOptions):
    """The options of one question; a row brings its own."""

    choices: dict[str, str] = Field({}, description="Letter → text of each option, or a list of the texts")

    @field_validator("choices", mode="before")
    @classmethod
    def _lettered(cls, value: Any) -> Any:
        if isinstance(value, list | tuple):
            if len(value) > len(LETTERS):
                raise ValueError(f"{len(value)} options: at most {len(LETTERS)} have a letter")
            return dict(zip(LETTERS, value, strict=False))
        return value

    @field_validator("choices")
    @classmethod
    def _letters(cls, value: dict[str, str]) -> dict[str, str]:
        wrong = [letter for letter in value if letter not in LETTERS or len(letter) != 1]
        if wrong:
            raise ValueError(f"“{wrong[0]}” is no letter from A to Z")
        return value


class ChoiceScorer(Scorer[ChoiceOptions]):
    """1 for the right option, 0 for another; an answer that names none is invalid, never guessed.

    The letter is read as MMMU's official parser does: `(B)`, else a lone `B`, else the option's text in a longer
    answer, the last one named. Beyond it: an answer that is exactly one option's text names that option, and a letter
    inside a word or inside an option's text ("A blue square") is no letter.
    """

    name = "choice"
    summary = "One of the lettered options, by letter or text; no choice is invalid"
    truth_form = "letter of an option, or its text"
    row_option = "choices"
    Options = ChoiceOptions
    examples = (
        ScorerExample("(B)", "B", 1.0, {"choices": {"A": "circle", "B": "square"}}),
        ScorerExample("Square.", "B", 1.0, {"choices": ["circle", "square"]}),
        ScorerExample("neither", "B", 0.0, {"choices": ["circle", "square"]}),
    )

    def _check(self, truth: Any, options: ChoiceOptions) -> str:
        if len(options.choices) < 2:
            return "the options of the question are missing: choices needs two or more"
        if not isinstance(truth, str):
            return "the truth must be the letter of an option, or its text"
        if letter_of(truth, options.choices) is None:
            return f"the truth {truth[:40]!r} is no letter and no text of the options {', '.join(options.choices)}"
        return ""

    def _score(self, prediction: str, truth: str, options: ChoiceOptions) -> Score:
        choice = read_choice(prediction, options.choices)
        if choice is None:
            return Score(0.0, False, False, "no choice", {"choice": None})
        right = choice == letter_of(truth, options.choices)
        return Score(float(right), right, details={"choice": choice})


def letter_of(truth: str, choices: dict[str, str]) -> str | None:
    """Return the letter that a truth means: the letter itself, else the one option with that text."""
    if truth.strip() in choices:
        return truth.strip()
    letters = [letter for letter, text in choices.items() if _plain(text) == _plain(truth)]
    return letters[0] if len(letters) == 1 else None


def read_choice(answer: str, choices: dict[str, str]) -> str | None:
    """Return the letter of the option that an answer names; None where it names none."""
    if not answer.strip():
        return None
    exact = [letter for letter, text in choices.items() if _plain(text) and _plain(text) == _plain(answer)]
    if len(exact) == 1 and answer.strip(_EDGES) not in choices:
        return exact[0]
    text = answer
    for mark in ",.!?;:'":
        text = text.strip(mark)
    text = f" {text.strip()} "
    texts = _Spans(hit.span() for option in choices.values() if option.strip() for hit in _occurrences(option, text))
    for pattern in (r"\({}\)", r"(?<![^\W_]){}(?= )", r"(?<![^\W_]){}(?=\.)"):
        hits = {
            letter: max(places)
            for letter in choices
            if (
                places := [
                    hit.start() for hit in re.finditer(pattern.format(letter), text) if not texts.hold(hit.span())
                ]
            )
        }
        if hits:
            return max(hits, key=lambda letter: hits[letter])
    if len(text.split()) < MIN_WORDS:
        return None
    last = {
        letter: max(places)
        for letter, option in choices.items()
        if option.strip() and (places := [hit.start() for hit in _occurrences(option, text)])
    }
    return max(last, key=lambda letter: (last[letter], len(choices[letter]))) if last else None


def _occurrences(option: str, text: str) -> list[re.Match[str]]:
    return list(re.finditer(re.escape(option.strip()), text, re.IGNORECASE))


class _Spans:
    """The (start, end) of options' texts in an answer, asked in logarithmic time; a single character is no text."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        ordered = sorted(span for span in spans if span[1] - span[0] > 1)
        self._starts = [start for start, _ in ordered]
        self._reach = list(accumulate((end for _, end in ordered), max))  # furthest end up to each start

    def hold(self, part: tuple[int, int]) -> bool:
        """Return whether one of them has the whole part inside."""
        before = bisect_right(self._starts, part[0])
        return before > 0 and part[1] <= self._reach[before - 1]


def _plain(text: str) -> str:
    return " ".join(text.strip(_EDGES).casefold().split())


SCORER = ChoiceScorer()
