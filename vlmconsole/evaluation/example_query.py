"""Which examples are wanted, in words: `is:wrong tag:blurred run:eval-shops total`, alike for screen and commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlmconsole.data.example import Example, truth_text
from vlmconsole.errors import LabError
from vlmconsole.evaluation.notes import ReadingNote
from vlmconsole.evaluation.predictions import Prediction, PredictionSource

Answered = Sequence[tuple[PredictionSource, Prediction]]

#: what `is:` takes → what it means
STATES = {
    "wrong": "answered wrong at least once",
    "right": "answered, and right every time",
    "flipped": "right on one side of a run and wrong on the other",
    "won": "wrong before, right after",
    "lost": "right before, wrong after",
    "invalid": "an answer that cannot be read",
    "failed": "a request that brought no answer",
    "unanswered": "no answer yet",
    "noted": "with a note or a tag",
}
FIELDS = ("is", "tag", "split", "group", "run", "id", "sort")
SORTS = ("answer", "score", "time", "id")


class QueryError(LabError):
    """A filter means nothing; the message names the word."""

    exit_status = 2
    code = "filter-invalid"


@dataclass(frozen=True)
class ExampleQuery:
    """All parts must hold. `runs` are parts of `RUN:SIDE`: only the answers of those sources count."""

    words: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    sort: str = ""

    def order(self, example: Example, answered: Answered) -> tuple[bool, Any]:
        """Return what examples are sorted by: the first answer that counts, the worst score first; those without one
        last.
        """
        if self.sort == "id":
            return False, example.id
        first = next((prediction for source, prediction in answered if self.counts(source)), None)
        values = {
            "answer": first.answer if first is not None else None,
            "score": first.score if first is not None else None,
            "time": first.seconds if first is not None else None,
        }
        value = values.get(self.sort)
        return value is None, "" if value is None and self.sort == "answer" else value if value is not None else 0.0

    @property
    def of_answers(self) -> bool:
        """Whether answers or notes decide."""
        return bool(self.states or self.tags)

    def counts(self, source: PredictionSource) -> bool:
        """Return whether the answers of a source count."""
        return all(part in f"{source.preset} {source.name} {source.model}".lower() for part in self.runs)

    def matches(self, example: Example, answered: Answered, notes: Sequence[ReadingNote]) -> bool:
        """Return whether an example is wanted, given its answers and notes."""
        if self.splits and example.split.lower() not in self.splits:
            return False
        if self.groups and example.group.lower() not in self.groups:
            return False
        if self.ids and not all(part in example.id.lower() for part in self.ids):
            return False
        tags = {note.tag.replace("_", " ") for note in notes}
        if not all(tag in tags for tag in self.tags):
            return False
        if self.states:
            counted = [(source, prediction) for source, prediction in answered if self.counts(source)]
            states = states_of(counted, notes)
            if not all(state in states for state in self.states):
                return False
        if not self.words:
            return True
        text = haystack(example, answered)
        return all(word in text for word in self.words)


def parse_query(text: str) -> ExampleQuery:
    """Return a filter as typed. Raises QueryError for a state that there is none of."""
    parts: dict[str, list[str]] = {name: [] for name in ("words", *FIELDS)}
    for word in text.lower().split():
        field, colon, value = word.partition(":")
        if colon and field in FIELDS:
            if value:  # `is:` alone is one that is being typed
                parts[field].append(value.replace("_", " ") if field == "tag" else value)
        else:
            parts["words"].append(word)
    for state in parts["is"]:
        if state not in STATES:
            raise QueryError(f"is:{state} is no filter.", f"Use is: with {', '.join(STATES)}.")
    for sort in parts["sort"]:
        if sort not in SORTS:
            raise QueryError(f"sort:{sort} is no order.", f"Use sort: with {', '.join(SORTS)}.")
    return ExampleQuery(
        tuple(parts["words"]),
        tuple(parts["is"]),
        tuple(parts["tag"]),
        tuple(parts["split"]),
        tuple(parts["group"]),
        tuple(parts["id"]),
        tuple(parts["run"]),
        parts["sort"][-1] if parts["sort"] else "",
    )


def states_of(answered: Answered, notes: Sequence[ReadingNote] = ()) -> frozenset[str]:
    """Return what `is:` says of an example with these answers and notes."""
    states = {"noted"} if notes else set()
    if not answered:
        return frozenset(states | {"unanswered"})
    predictions = [prediction for _, prediction in answered]
    scored = [prediction for prediction in predictions if prediction.right is not None and not prediction.failed]
    if any(prediction.wrong for prediction in scored):
        states.add("wrong")
    elif scored:
        states.add("right")
    if any(prediction.failed for prediction in predictions):
        states.add("failed")
    if any(not prediction.valid and not prediction.failed for prediction in predictions):
        states.add("invalid")
    sides: dict[str, dict[str, bool | None]] = {}
    for source, prediction in answered:
        sides.setdefault(source.run, {})[source.side] = prediction.right
    for run in sides.values():
        if {"before", "after"} <= run.keys() and None not in run.values() and run["before"] != run["after"]:
            states |= {"flipped", "won" if run["after"] else "lost"}
    return frozenset(states)


def haystack(example: Example, answered: Answered) -> str:
    """Return what a word of a filter is looked for in: id, turns, truth, group, and every answer."""
    texts = [example.id, *(turn.text for turn in example.turns), truth_text(example.truth), example.group]
    texts += [prediction.answer or "" for _, prediction in answered]
    return "\n".join(texts).lower()
