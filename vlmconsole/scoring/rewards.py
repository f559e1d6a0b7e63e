"""Rewards of sampled answers: one scorer or several with weights, the same in this process and inside verl."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from vlmconsole.scoring.function_process import CALL_LIMIT
from vlmconsole.scoring.python_scorer import PREFIX, PythonScorer, names_function
from vlmconsole.scoring.registry import find_scorer, identity
from vlmconsole.scoring.scorer import Score
from vlmconsole.scoring.scorers import Scored, known_scorer, read_truth
from vlmconsole.system.typed_paths import FunctionOrName, LocatedFunction

OWN = "own"  # the name, in evidence, of the part that each example's own scorer gives


def _prefixed(value: str) -> str:
    """A function in a file with `python:` before it; other names as they are."""
    return PREFIX + value if names_function(value) and not value.startswith(PREFIX) else value


class RewardPart(BaseModel):
    """One scorer of a reward."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    scorer: Annotated[FunctionOrName, AfterValidator(known_scorer), AfterValidator(_prefixed)] = Field(
        "", description="A scorer, or FILE.py:FUNCTION; empty: each example's own"
    )
    options: dict[str, Any] = Field({}, description="The scorer's options")
    weight: float = Field(1.0, gt=0, allow_inf_nan=False, description="Weight among the parts")
    limit: float = Field(CALL_LIMIT, gt=0, le=600, description="Seconds that a function may take for one answer")


def _listed(value: Any) -> Any:
    """A scorer's name, a part, or a list of both, as a list of parts; "" and [] are none."""
    if value == "" or value is None:
        return []
    values = value if isinstance(value, list | tuple) else [value]
    return [{"scorer": item} if isinstance(item, str) else item for item in values]


#: the type of a setting: a name, FILE.py:FUNCTION, or tables with scorer, options and weight
RewardParts = Annotated[list[RewardPart], LocatedFunction(), BeforeValidator(_listed)]


@dataclass(frozen=True)
class JudgedExample:
    """What a reward may know of an example beside the answer. `scorer` and `options` are its own."""

    truth: Any
    scorer: str = ""
    options: Mapping[str, Any] | None = None
    question: str = ""
    uid: str = ""
    source: str = ""


class Reward:
    """The weighted mean of its parts. The files of functions are read once: a later edit changes nothing."""

    def __init__(self, parts: Sequence[RewardPart]) -> None:
        """Raises UnknownScorerError, PythonFileError and OptionsError."""
        self.parts = tuple(parts)
        self._scorers = [find_scorer(part.scorer) if part.scorer else None for part in self.parts]
        for part, scorer in zip(self.parts, self._scorers, strict=True):
            if scorer is not None:
                scorer.parse(part.options)
        self.names = _different(OWN if scorer is None else scorer.label for scorer in self._scorers)
        self._total = sum(part.weight for part in self.parts)

    def judge(self, answer: str, example: JudgedExample) -> Scored:
        """Score one sampled answer; `details` hold `parts` (name → score), and `failed` where a part gave none.

        Raises ScoringError for a truth that does not fit: a fault of the data.
        """
        scores = {
            name: self._part(part, scorer, answer, example)
            for name, part, scorer in zip(self.names, self.parts, self._scorers, strict=True)
        }
        score = sum(scores[name].score * part.weight for name, part in zip(self.names, self.parts, strict=True))
        failed = any(partial.details.get("failed") for partial in scores.values())
        mean = 0.0 if failed else min(1.0, score / self._total)
        details = {
            "parts": {name: partial.score for name, partial in scores.items()},
            **({"failed": True} if failed else {}),
        }
        reason = "; ".join(partial.reason for partial in scores.values() if partial.reason)
        valid = all(partial.valid for partial in scores.values())
        correct = all(partial.correct for partial in scores.values())
        return Scored(valid and not failed, correct and not failed, mean, mean, reason, details)

    def sources(self) -> dict[str, PythonScorer]:
        """Return the parts that are functions in files, by name."""
        return {
            name: scorer
            for name, scorer in zip(self.names, self._scorers, strict=True)
            if isinstance(scorer, PythonScorer)
        }

    def identity(self) -> list[dict[str, Any]]:
        """Return what goes into hashes and conditions: each part's identity and weight."""
        return [
            {"scorer": OWN if scorer is None else identity(scorer, part.options), "weight": part.weight}
            for part, scorer in zip(self.parts, self._scorers, strict=True)
        ]

    def _part(self, part: RewardPart, scorer: Any, answer: str, example: JudgedExample) -> Score:
        options = dict(part.options)
        if scorer is None or scorer.name == example.scorer:
            options = {**(example.options or {}), **options}
        if scorer is None:
            scorer = find_scorer(example.scorer)
        if isinstance(scorer, PythonScorer):
            about = {"uid": example.uid, "scorer": example.scorer, "options": dict(example.options or {})}
            given = {"question": example.question, "data_source": example.source, "extra_info": about}
            return scorer.judge(answer, example.truth, options, limit=part.limit, **given)
        score: Score = scorer.score(answer, read_truth(scorer.name, example.truth), options)
        return score


def _different(names: Iterable[str]) -> list[str]:
    """Names, each with a number where it comes again."""
    made: list[str] = []
    for name in names:
        again = sum(name_taken.partition(" #")[0] == name for name_taken in made)
        made.append(f"{name} #{again + 1}" if again else name)
    return made
