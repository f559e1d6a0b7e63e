"""Which examples a filter leaves, and what `is:` says of an example with these answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from own_datasets import example
from refusals import refused

from vlmconsole.evaluation.example_query import STATES, QueryError, parse_query, states_of
from vlmconsole.evaluation.notes import ReadingNote
from vlmconsole.evaluation.predictions import Prediction, PredictionSource

RIGHT, WRONG = Prediction("red", True, True, 1.0), Prediction("blue", False, True, 0.0)
INVALID, FAILED = Prediction("", False, False, 0.0), Prediction(None, False, False, 0.0, "HTTP 503")
UNSCORED = Prediction("a cat", None, True, None)


def source(run: str, side: str) -> PredictionSource:
    return PredictionSource(run, "eval", side, "tiny")


@pytest.mark.parametrize(
    ("before", "after", "states"),
    [
        (RIGHT, RIGHT, {"right"}),
        (RIGHT, WRONG, {"wrong", "flipped", "lost"}),
        (WRONG, RIGHT, {"wrong", "flipped", "won"}),
        (WRONG, INVALID, {"wrong", "invalid"}),
        (FAILED, RIGHT, {"right", "failed", "flipped", "won"}),
        (UNSCORED, UNSCORED, set()),
    ],
)
def test_states_of_both_sides(before: Prediction, after: Prediction, states: set[str]) -> None:
    answered = [(source("a", "before"), before), (source("a", "after"), after)]
    assert states_of(answered) == states and states <= STATES.keys()


def test_two_runs_that_disagree_have_not_flipped() -> None:
    assert states_of([(source("a", "before"), RIGHT), (source("b", "after"), WRONG)]) == {"wrong"}


def test_no_answer_and_a_note() -> None:
    note = ReadingNote(1.0, "example", "shape-00001", "too dark")
    assert states_of((), (note,)) == {"unanswered", "noted"}
    assert parse_query("tag:too_dark is:noted").matches(example(1), (), (note,))
    assert not parse_query("tag:blurred").matches(example(1), (), (note,))


def test_words_are_found_in_question_truth_and_answers() -> None:
    answered = [(source("a", "before"), WRONG)]
    for words in ("SHAPE 7", "shape-00007", "blue", "orange"):
        assert parse_query(words).matches(example(7), answered, ()), words
    assert not parse_query("violet").matches(example(7), answered, ())


def test_a_run_lets_only_its_answers_count() -> None:
    answered = [(source("a-1", "before"), WRONG), (source("b-2", "before"), RIGHT)]
    assert parse_query("is:wrong").matches(example(1), answered, ())
    assert not parse_query("is:wrong run:b-2").matches(example(1), answered, ())


def test_an_unknown_state_names_the_known() -> None:
    with refused("filter-invalid", "is:wrog", "wrong", "flipped", error=QueryError):
        parse_query("is:wrog")


@given(st.text())
def test_any_text_is_a_filter_or_a_refusal(text: str) -> None:
    try:
        query = parse_query(text)
    except QueryError:
        assert "is:" in text.lower()
        return
    query.matches(example(1), (), ())
