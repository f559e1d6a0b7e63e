"""`json`: a strict JSON object, each field by a scorer of its own."""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from vlmconsole.errors import LabError
from vlmconsole.scoring.registry import find_scorer
from vlmconsole.scoring.scorer import Score, Scorer, ScorerExample, ScorerOptions

SAME = "same"  # of a field without a scorer: equal JSON values, text without case and surrounding space
_FENCE = re.compile(r"\s*```(?:json)?[ \t]*\n(.*?)\n?```\s*", re.DOTALL)


class FieldScorer(BaseModel):
    """How one field is scored, and how much it weighs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    scorer: str = Field(SAME, description="A scorer's name; same: equal JSON values, text without case")
    options: dict[str, Any] = Field({}, description="The scorer's options")
    weight: float = Field(1.0, gt=0, allow_inf_nan=False, description="Weight of the field among the others")


class JsonOptions(ScorerOptions):
    """The fields' scorers, and how strictly the object is read."""

    fields: dict[str, FieldScorer] = Field({}, description="Field → {scorer, options, weight}; the rest: equal values")
    extra: bool = Field(False, description="Fields that the truth does not have are allowed")
    fence: bool = Field(False, description="A code fence around the object is allowed")

    @field_validator("fields")
    @classmethod
    def _known(cls, value: dict[str, FieldScorer]) -> dict[str, FieldScorer]:
        for name, field in value.items():
            if field.scorer == "json" or ":" in field.scorer:
                raise ValueError(f"the field {name} cannot be scored by {field.scorer}")
            try:
                if field.scorer != SAME:
                    find_scorer(field.scorer).parse(field.options)
            except LabError as error:
                raise ValueError(f"the field {name}: {error.message}") from None
        return value


class JsonScorer(Scorer[JsonOptions]):
    """The weighted mean over the truth's fields. Anything but one object with exactly these fields is invalid."""

    name = "json"
    summary = "A strict JSON object; the mean over its fields, each by its own scorer"
    truth_form = "JSON object, or its text"
    Options = JsonOptions
    examples = (
        ScorerExample('{"shop": "aldi", "total": 12.5}', {"shop": "Aldi", "total": 12.5}, 1.0),
        ScorerExample('{"shop": "aldi", "total": 12}', {"shop": "Aldi", "total": 12.5}, 0.5),
        ScorerExample(
            '{"total": "12.49"}',
            {"total": 12.5},
            1.0,
            {"fields": {"total": {"scorer": "number", "options": {"absolute": 0.01}}}},
        ),
        ScorerExample('Sure: {"total": 12.5}', {"total": 12.5}, 0.0),
    )

    def _check(self, truth: Any, options: JsonOptions) -> str:
        wanted = _object_of(truth)
        if isinstance(wanted, str) or not wanted:
            return "the truth must be a JSON object with one field or more"
        for name, field in options.fields.items():
            if name not in wanted:
                return f"the truth has no field {name}, which has a scorer"
            if field.scorer != SAME and (misfit := find_scorer(field.scorer).check(wanted[name], field.options)):
                return f"the field {name}: {misfit}"
        return ""

    def _score(self, prediction: str, truth: Any, options: JsonOptions) -> Score:
        wanted = _object_of(truth)
        fence = _FENCE.fullmatch(prediction) if options.fence else None
        given = _object_of(fence[1] if fence else prediction)
        if isinstance(given, str) or isinstance(wanted, str):
            return Score(0.0, False, False, f"{given}")
        missing = [name for name in wanted if name not in given]
        if missing:
            return Score(0.0, False, False, f"missing field {missing[0]}")
        if not options.extra and len(given) > len(wanted):
            return Score(0.0, False, False, "extra fields")
        scores = {name: self._field(given[name], value, options.fields.get(name)) for name, value in wanted.items()}
        weights = {name: options.fields[name].weight if name in options.fields else 1.0 for name in wanted}
        score = sum(scores[name] * weights[name] for name in wanted) / sum(weights.values())
        return Score(score, all(value == 1.0 for value in scores.values()), details={"fields": scores})

    def _field(self, given: Any, wanted: Any, field: FieldScorer | None) -> float:
        if field is None or field.scorer == SAME:
            return float(_same(given, wanted))
        scorer = find_scorer(field.scorer)
        prediction = given if isinstance(given, scorer.reads) and not isinstance(given, bool) else json.dumps(given)
        return scorer.score(prediction, wanted, field.options).score


def _same(given: Any, wanted: Any) -> bool:
    if isinstance(given, str) and isinstance(wanted, str):
        return given.strip().casefold() == wanted.strip().casefold()
    if isinstance(given, bool) is not isinstance(wanted, bool):
        return False
    if isinstance(given, list) and isinstance(wanted, list):
        return len(given) == len(wanted) and all(map(_same, given, wanted))
    if isinstance(given, dict) and isinstance(wanted, dict):
        return given.keys() == wanted.keys() and all(_same(given[key], wanted[key]) for key in wanted)
    return bool(given == wanted)


def _object_of(value: Any) -> dict[str, Any] | str:
    """A JSON object from itself or from its text; a reason (text) where it is none."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, str):
        return "not a JSON object"
    try:
        read = json.loads(value, object_pairs_hook=_pairs, parse_constant=_no_number)
    except _JsonRefusal as refusal:
        return str(refusal)
    except RecursionError:
        return "nested too deeply"
    except ValueError:
        return "not JSON"
    return read if isinstance(read, dict) else "not a JSON object"


class _JsonRefusal(ValueError):
    """Valid to the reader of the library, and not to a strict one."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _JsonRefusal("a field is given twice")
    return value


def _no_number(text: str) -> Any:
    raise _JsonRefusal(f"{text} is no JSON number")


SCORER = JsonScorer()
