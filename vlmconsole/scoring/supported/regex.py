"""`regex`: the answer matches a pattern, within a time limit. Patterns are data: they may be anybody's."""

from __future__ import annotations

from typing import Any

import regex
from pydantic import Field, field_validator

from vlmconsole.scoring.scorer import Score, Scorer, ScorerExample, ScorerOptions, accepted, right_or_wrong

LIMIT = 0.5  # seconds for one pattern on one answer
LONGEST_PATTERN = 2000  # characters


class RegexOptions(ScorerOptions):
    """The pattern, and how it is applied."""

    pattern: str = Field(
        "", description="Takes the answer out of the text (its first group, else all); empty: the truth is the pattern"
    )
    case: bool = Field(True, description="Case counts")
    whole: bool = Field(False, description="The pattern must match the whole answer, not a part of it")

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        if reason := _wrong(value):
            raise ValueError(reason)
        return value


class RegexScorer(Scorer[RegexOptions]):
    """Without `pattern`: 1 when the truth, a pattern, matches. With it: what it takes out must equal the truth.

    The notation is that of the library `regex`. No match, or none within the limit, is invalid with `pattern`.
    """

    name = "regex"
    summary = "The answer matches a pattern, or what a pattern takes out equals the truth"
    truth_form = "pattern, or with the option pattern: text, number, or list of accepted answers"
    Options = RegexOptions
    examples = (
        ScorerExample("Total: 12.50", r"12[.,]50\b", 1.0),
        ScorerExample("<answer>blue</answer>", "blue", 1.0, {"pattern": "<answer>(.*?)</answer>"}),
        ScorerExample("blue", "blue", 0.0, {"pattern": "<answer>(.*?)</answer>"}),
    )

    def _check(self, truth: Any, options: RegexOptions) -> str:
        if options.pattern:
            return "" if accepted(truth) is not None else "the truth must be a text, a number, or a list of them"
        if not isinstance(truth, str) or not truth:
            return "the truth must be a pattern, as the option pattern is empty"
        return _wrong(truth)

    def _score(self, prediction: str, truth: Any, options: RegexOptions) -> Score:
        compiled = regex.compile(options.pattern or truth, 0 if options.case else regex.IGNORECASE)
        search = compiled.fullmatch if options.whole else compiled.search
        try:
            match = search(prediction, timeout=LIMIT)
        except TimeoutError:
            return Score(0.0, False, False, f"the pattern took longer than {LIMIT:g} s")
        if not options.pattern:
            return right_or_wrong(match is not None)
        if match is None:
            return Score(0.0, False, False, "the pattern does not match")
        taken = (match[1] if match.re.groups else match[0]) or ""
        wanted = accepted(truth) or []
        same = taken.strip() in [text.strip() for text in wanted]
        if not same and not options.case:
            same = taken.strip().casefold() in [text.strip().casefold() for text in wanted]
        return Score(float(same), same, details={"matched": taken})


def _wrong(pattern: str) -> str:
    if len(pattern) > LONGEST_PATTERN:
        return f"the pattern has {len(pattern)} characters, at most {LONGEST_PATTERN} are read"
    try:
        regex.compile(pattern)
    except (regex.error, RecursionError, OverflowError) as error:
        return f"the pattern {pattern[:60]!r} is none: {error}"
    return ""


SCORER = RegexScorer()
