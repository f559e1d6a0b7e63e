"""The scorer of a dataset: the user's own choice, or the first that fits every truth; and the rows it does not fit."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vlmconsole.data.formats.raw_example import RawExample
from vlmconsole.scoring.registry import find_scorer
from vlmconsole.scoring.scorer import OptionsError

_NUMBER = re.compile(r"\s*[-+−]?[$€£¥]?\s*\d[\d., ]*\s*(?:%|[$€£¥])?\s*")


def _number(raw: RawExample) -> bool:
    truth = raw.truth
    if isinstance(truth, str):
        return _NUMBER.fullmatch(truth) is not None
    return isinstance(truth, (int, float)) and not isinstance(truth, bool)


def _box(value: Any) -> bool:
    if isinstance(value, Mapping):
        return _box(value.get("bbox_2d", value.get("bbox")))
    numbers = isinstance(value, list) and len(value) == 4
    return numbers and all(isinstance(item, (int, float)) and not isinstance(item, bool) for item in value)


def _boxes(raw: RawExample) -> bool:
    return _box(raw.truth) or (isinstance(raw.truth, list) and bool(raw.truth) and all(_box(box) for box in raw.truth))


def _texts(raw: RawExample, least: int) -> bool:
    truth = raw.truth
    return isinstance(truth, list) and len(truth) >= least and all(isinstance(answer, str) for answer in truth)


#: scorers that can be proposed, the most particular first, each with what its truths look like
_PROPOSED: tuple[tuple[str, Callable[[RawExample], bool]], ...] = (
    ("counting", lambda raw: isinstance(raw.truth, Mapping) and set(raw.truth) == {"red_circles", "blue_squares"}),
    ("choice", lambda raw: "choices" in raw.options),
    ("boxes", _boxes),
    ("json", lambda raw: isinstance(raw.truth, Mapping)),
    ("number", _number),
    ("textvqa", lambda raw: _texts(raw, 10) and len(raw.truth) == 10),
    ("vqa", lambda raw: _texts(raw, 3) and len(set(raw.truth)) < len(raw.truth)),
)
_FALLBACK = "exact"


class ScorerChoice:
    """Judges each truth as it comes; `settle` says which scorer it is and which rows have no truth for it."""

    def __init__(self, scorer: str, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self._given = scorer
        self._chosen = find_scorer(scorer) if scorer else None
        if self._chosen is not None:
            self._chosen.parse(self._options)  # a wrong option is told before a row is read
        self._fitting = [] if scorer else [entry for entry in _PROPOSED if _takes(entry[0], self._options)]
        if not scorer and not self._fitting:
            find_scorer(_FALLBACK).parse(self._options)
        self._fallback = _FALLBACK if _takes(_FALLBACK, self._options) else ""
        self._misplaced: dict[str, dict[int, str]] = {}  # proposed scorer → row → why its truth lies in no image of it
        self._unfit: dict[int, str] = {}  # row → why the fallback cannot score it, the same text for many
        self._unanswered: dict[int, str] = {}
        self._answered = 0

    def add(self, number: int, raw: RawExample, sizes: Sequence[tuple[int, int]]) -> str:
        """Judge a row's truth; why the user's own scorer cannot score it, "" where it can or none was given.

        `sizes`: width and height of each of its images, in pixels as sent.
        """
        if raw.truth is None:
            self._unanswered[number] = "it has no answer, and other rows have one"
            return ""
        self._answered += 1
        if self._chosen is not None:
            options = scorer_options(self._given, self._options, raw)
            return self._chosen.check(raw.truth, options) or self._chosen.misplaced(raw.truth, sizes)
        self._fitting = [
            (name, fits)
            for name, fits in self._fitting
            if fits(raw) and not find_scorer(name).check(raw.truth, scorer_options(name, self._options, raw))
        ]
        for name, _ in self._fitting:  # a misplaced truth is a fault of its row: it rules no scorer out
            if reason := find_scorer(name).misplaced(raw.truth, sizes):
                self._misplaced.setdefault(name, {})[number] = reason
        if self._fallback and (reason := find_scorer(self._fallback).check(raw.truth, self._options)):
            self._unfit[number] = reason
        return ""

    def settle(self) -> tuple[str, dict[int, str]]:
        """(scorer, number of each row that it cannot score → why); "" where no row has a truth.

        Raises OptionsError where no scorer that takes the options fits all rows.
        """
        if not self._answered:
            return self._given, {}
        if self._given or self._fitting:
            name = self._given or self._fitting[0][0]
            return name, {**self._unanswered, **self._misplaced.get(name, {})}
        find_scorer(_FALLBACK).parse(self._options)
        unfit = {number: f"{reason}, as no scorer fits all rows" for number, reason in self._unfit.items()}
        return _FALLBACK, {**self._unanswered, **unfit}


def _takes(scorer: str, options: Mapping[str, Any]) -> bool:
    try:
        find_scorer(scorer).parse(options)
    except OptionsError:
        return False
    return True


def scorer_options(scorer: str, options: Mapping[str, Any], raw: RawExample) -> dict[str, Any]:
    """Return the options of one example's scorer: the dataset's, and what only the row knows (the choices it
    offers).
    """
    own = find_scorer(scorer).row_option if scorer else ""
    return {**options, own: raw.options[own]} if own and own in raw.options else dict(options)
