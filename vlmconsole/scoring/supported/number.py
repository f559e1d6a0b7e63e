"""`number`: the answer's one number lies close enough to the truth."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal

from pydantic import Field

from vlmconsole.scoring.numbers import Mark, ReadNumber, numbers_in, read_number
from vlmconsole.scoring.scorer import Score, Scorer, ScorerExample, ScorerOptions


class NumberOptions(ScorerOptions):
    """How near is right, and how numbers are written."""

    tolerance: float = Field(0.0, ge=0, lt=1, description="Relative tolerance, a share of the truth: 0.05 is 5 %")
    absolute: float = Field(0.0, ge=0, allow_inf_nan=False, description="Absolute tolerance, in the truth's unit")
    decimal: Mark = Field(
        "auto", description="Decimal mark; auto: the point (1,250 is 1250), or a comma that can be nothing else (1,25)"
    )
    percent: Literal["sign", "share"] = Field("sign", description="5 % is 5 (sign) or 0.05 (share)")
    words: bool = Field(True, description="Words may stand around the one number")


class NumberScorer(Scorer[NumberOptions]):
    """1 within either tolerance, else 0. No number, or more than one, is invalid: none is chosen by guessing."""

    name = "number"
    summary = "The answer's one number is within a tolerance of the truth"
    truth_form = "number, text that holds one, or list of accepted numbers"
    Options = NumberOptions
    examples = (
        ScorerExample("The total is $1,250.00.", 1250, 1.0),
        ScorerExample("10.5", "10", 1.0, {"tolerance": 0.05}),
        ScorerExample("between 3 and 4", 3, 0.0),
        ScorerExample("5 %", 0.05, 1.0, {"percent": "share"}),
    )

    def _check(self, truth: Any, options: NumberOptions) -> str:
        values = list(truth) if isinstance(truth, list | tuple) else [truth]
        if not values or any(read_number(value, options.decimal) is None for value in values):
            return "the truth must be one number, or a list of accepted numbers"
        return ""

    def _score(self, prediction: str, truth: Any, options: NumberOptions) -> Score:
        numbers = numbers_in(prediction, options.decimal)
        if len(numbers) != 1 or numbers[0] is None:
            reason = "no number" if not numbers else "more than one number" if len(numbers) > 1 else "no plain number"
            return Score(0.0, False, False, reason)
        if not options.words and len(prediction.split()) > 1 + numbers[0].percent:
            return Score(0.0, False, False, "text around the number")
        given = _value(numbers[0], options)
        values = list(truth) if isinstance(truth, list | tuple) else [truth]
        targets = [_value(target, options) for value in values if (target := read_number(value, options.decimal))]
        error = min(abs(given - target) for target in targets)
        right = any(abs(given - target) <= _allowed(target, options) for target in targets)
        return Score(float(right), right, details={"error": float(error)})


def _value(number: ReadNumber, options: NumberOptions) -> Fraction:
    return number.value / 100 if number.percent and options.percent == "share" else number.value


def _allowed(target: Fraction, options: NumberOptions) -> Fraction:
    return max(Fraction(str(options.absolute)), Fraction(str(options.tolerance)) * abs(target))


SCORER = NumberScorer()
