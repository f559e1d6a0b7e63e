"""What a scorer is: a name and version, options, a check of the truth, and a score from 0 to 1 with its reason.

A module of `scoring.supported` holds one scorer, `SCORER`; other packages bring theirs by the entry point group
`vlmconsole.scorers`. `scoring.registry` finds both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from vlmconsole.errors import LabError
from vlmconsole.text.settings_errors import explain_all


class ScoringError(LabError):
    """The truth cannot be scored against: a fault of the data, never of the model."""


class OptionsError(LabError):
    """A scorer's options are not what it takes; the message names the key."""

    exit_status = 2


class ScorerOptions(BaseModel):
    """The options of a scorer, none of its own. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


O = TypeVar("O", bound=ScorerOptions)  # noqa: E741


@dataclass(frozen=True)
class Score:
    """`score` from 0 to 1; `correct`: fully right; `valid`: in the form that the scorer reads; `reason`: why not.

    `details` are further figures of the scorer (JSON values), such as the raw error rate of `cer`.
    """

    score: float
    correct: bool
    valid: bool = True
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ScorerExample:
    """One worked example for the list of scorers and its documentation; it is held to by a test."""

    prediction: Any
    truth: Any
    score: float
    options: Mapping[str, Any] = field(default_factory=dict)


class Scorer(ABC, Generic[O]):
    """One rule. Subclasses set the class variables and write `_score`, and `_check` unless every truth fits."""

    name: ClassVar[str]
    version: ClassVar[str] = "1"
    summary: ClassVar[str]  # one line for lists
    truth_form: ClassVar[str]  # what the truth is: "text, or a list of accepted answers"
    row_option: ClassVar[str] = ""  # the option that a line of a file gives as `options`, if that is a thing of its own
    reads: ClassVar[tuple[type, ...]] = (str,)  # JSON types of a prediction; the rest is "no answer text"
    Options: type[O]
    examples: ClassVar[Sequence[ScorerExample]] = ()

    @property
    def label(self) -> str:
        """Name and version, as samples carry it."""
        return f"{self.name}/{self.version}"

    @property
    def source_sha256(self) -> str:
        """Hash (hex) of the code of a scorer that is no part of an installed package; "" for the others."""
        return ""

    def parse(self, options: Mapping[str, Any] | ScorerOptions | None) -> O:
        """Return the options, checked. Raises OptionsError naming the key."""
        if isinstance(options, self.Options):
            return options
        try:
            return self.Options.model_validate(dict(options or {}))
        except ValidationError as error:
            message = explain_all(error.errors(), self.Options)
            raise OptionsError(f"The scorer {self.name}: {message}.", code="options-invalid") from None

    def check(self, truth: Any, options: Mapping[str, Any] | ScorerOptions | None = None) -> str:
        """Return why this truth (any JSON value) cannot be scored against; "" when it can. Raises OptionsError."""
        return self._check(truth, self.parse(options))

    def misplaced(self, truth: Any, sizes: Sequence[tuple[int, int]]) -> str:
        """Return why a truth that fits cannot lie in any of its images (width, height, pixels as sent); "" where it
        can.
        """
        return ""

    def score(self, prediction: object, truth: Any, options: Mapping[str, Any] | ScorerOptions | None = None) -> Score:
        """Score one answer, text as a rule. Raises ScoringError when the truth does not fit, and OptionsError."""
        parsed = self.parse(options)
        misfit = self._check(truth, parsed)
        if misfit:
            raise ScoringError(misfit, code="truth-unfit")
        if not isinstance(prediction, self.reads) or isinstance(prediction, bool):
            return Score(0.0, False, False, "there is no answer text")
        return self._score(prediction, truth, parsed)

    def _check(self, truth: Any, options: O) -> str:
        return ""

    @abstractmethod
    def _score(self, prediction: Any, truth: Any, options: O) -> Score: ...


def accepted(truth: Any) -> list[str] | None:
    """Return the accepted answers of a truth: of a text, a number or a list of them; None for everything else."""
    values = list(truth) if isinstance(truth, list | tuple) else [truth]
    if not values or any(isinstance(value, bool) or not isinstance(value, str | int | float) for value in values):
        return None
    try:
        return [value if isinstance(value, str) else f"{value}" for value in values]
    except ValueError:  # an integer of more digits than Python writes out
        return None


def right_or_wrong(right: bool) -> Score:
    """Return a valid answer that is right or is not."""
    return Score(float(right), right)
