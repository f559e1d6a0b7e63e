"""The registry of scorers: golden vectors of reference implementations, their own examples, and what they refuse."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest
from folders import DATA
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import mentions

from vlmconsole.scoring import scorers
from vlmconsole.scoring.registry import UnknownScorerError, find_scorer, identity, scorer_names
from vlmconsole.scoring.scorer import OptionsError, ScoringError
from vlmconsole.scoring.supported.choice import _Spans

GOLDEN: dict[str, list[dict[str, Any]]] = json.loads((DATA / "scorers.json").read_text(encoding="utf-8"))
REGISTERED = [find_scorer(name) for name in scorer_names() if name != "judge"]  # which needs a server
EXAMPLES = [(scorer, example) for scorer in REGISTERED for example in scorer.examples]


@pytest.mark.parametrize("vector", GOLDEN["anls"], ids=lambda vector: vector["prediction"][:20])
def test_anls_equals_the_golden_vectors(vector: dict[str, Any]) -> None:
    assert find_scorer("anls").score(vector["prediction"], vector["answers"]).score == pytest.approx(
        vector["anls"], abs=1e-12
    )


@pytest.mark.parametrize("vector", GOLDEN["relaxed"], ids=lambda vector: f"{vector['prediction']}/{vector['target']}")
def test_relaxed_accuracy_equals_the_golden_vectors(vector: dict[str, Any]) -> None:
    assert find_scorer("relaxed").score(vector["prediction"], vector["target"]).correct == vector["right"]


@pytest.mark.parametrize("vector", GOLDEN["ocr"], ids=lambda vector: vector["prediction"])
@pytest.mark.parametrize("rate", ["cer", "wer"])
def test_error_rates_equal_the_golden_vectors(rate: str, vector: dict[str, Any]) -> None:
    score = find_scorer(rate).score(vector["prediction"], vector["truth"])
    assert score.details["error"] == pytest.approx(vector[rate], abs=1e-12)
    assert score.score == pytest.approx(max(0.0, 1 - vector[rate]), abs=1e-12)


@pytest.mark.parametrize("vector", GOLDEN["choice"], ids=lambda vector: vector["response"][:20])
def test_choices_equal_the_golden_vectors(vector: dict[str, Any]) -> None:
    score = find_scorer("choice").score(vector["response"], "A", {"choices": vector["options"]})
    assert score.details["choice"] == vector["choice"]
    assert score.valid == (vector["choice"] is not None) and score.correct == (vector["choice"] == "A")


@pytest.mark.parametrize("vector", GOLDEN["iou"], ids=lambda vector: str(vector["prediction"]))
def test_overlaps_equal_the_golden_vectors(vector: dict[str, Any]) -> None:
    score = find_scorer("boxes").score(vector["prediction"], vector["truth"])
    assert score.details["iou"] == pytest.approx(vector["iou"], abs=1e-12)
    assert score.correct == (vector["iou"] >= 0.5)


@pytest.mark.parametrize(
    ("scorer", "example"), EXAMPLES, ids=[f"{scorer.name}-{example.prediction}"[:40] for scorer, example in EXAMPLES]
)
def test_every_scorers_examples_are_what_they_give(scorer: Any, example: Any) -> None:
    assert scorer.score(example.prediction, example.truth, example.options).score == pytest.approx(example.score)


@pytest.mark.parametrize("scorer", REGISTERED, ids=lambda scorer: scorer.name)
def test_every_scorer_has_examples_a_summary_and_described_options(scorer: Any) -> None:
    assert scorer.examples and scorer.summary and scorer.truth_form and find_scorer(scorer.name) is scorer
    assert all(info.description for info in scorer.Options.model_fields.values())
    with pytest.raises(OptionsError, match="no_such_option"):
        scorer.score("x", "y", {"no_such_option": 1})
    assert scorer.check(None)


@pytest.mark.parametrize("scorer", REGISTERED, ids=lambda scorer: scorer.name)
@settings(max_examples=40)
@given(prediction=st.text(max_size=60) | st.text("{}[]\":,0123456789.-+eE%$()ABCabc \n'", max_size=60))
def test_any_text_gets_a_score_from_nought_to_one(scorer: Any, prediction: str) -> None:
    example = scorer.examples[0]
    score = scorer.score(prediction, example.truth, example.options)
    assert 0 <= score.score <= 1 and math.isfinite(score.score)
    assert score.valid or (score.score == 0 and not score.correct and score.reason)
    assert not score.correct or score.score == 1
    json.dumps(dict(score.details), allow_nan=False)


@pytest.mark.parametrize("scorer", REGISTERED, ids=lambda scorer: scorer.name)
@pytest.mark.parametrize("prediction", [None, 3, True, b"x"])
def test_no_answer_text_is_invalid(scorer: Any, prediction: object) -> None:
    example = scorer.examples[0]
    score = scorer.score(prediction, example.truth, example.options)
    assert (score.score, score.valid) == (0.0, False)


@pytest.mark.parametrize(
    ("name", "truth", "options"),
    [
        ("exact", None, {}),
        ("exact", [], {}),
        ("exact", {"a": 1}, {}),
        ("exact", True, {}),
        ("number", "twelve", {}),
        ("number", "3 or 4", {}),
        ("number", float("nan"), {}),
        ("number", "1,25", {"decimal": "."}),
        ("anls", [], {}),
        ("cer", "  ", {}),
        ("wer", ["a", ""], {}),
        ("choice", "B", {}),
        ("choice", "E", {"choices": ["x", "y"]}),
        ("choice", "x", {"choices": ["x", "x"]}),
        ("boxes", [10, 0, 0, 10], {}),
        ("boxes", [0, 0, 1], {}),
        ("boxes", [0, 0, 9, 9], {"labels": True}),
        ("boxes", [0, 0, 9, 9], {"unit": "thousandths"}),
        ("json", "[1]", {}),
        ("json", '{"a": 1, "a": 1}', {}),
        ("json", {"a": 1}, {"fields": {"b": {"scorer": "number"}}}),
        ("json", {"a": "x"}, {"fields": {"a": {"scorer": "number"}}}),
        ("regex", "(", {}),
        ("regex", 3, {}),
        ("vqa", [1], {}),
        ("textvqa", ["a"] * 9, {}),
        ("counting", "3", {}),
        ("naming", "", {}),
    ],
)
def test_a_truth_that_does_not_fit_is_named_before_any_answer(name: str, truth: Any, options: dict[str, Any]) -> None:
    reason = find_scorer(name).check(truth, options)
    assert reason
    with pytest.raises(ScoringError) as refused:
        find_scorer(name).score("x", truth, options)
    assert refused.value.message == reason


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("number", {"tolerance": "much"}),
        ("number", {"tolerance": -1}),
        ("number", {"tolerance": float("nan")}),
        ("choice", {"choices": {"first": "x"}}),
        ("choice", {"choices": ["x"] * 27}),
        ("regex", {"pattern": "("}),
        ("json", {"fields": {"a": {"scorer": "guess"}}}),
        ("json", {"fields": {"a": {"scorer": "number", "options": {"x": 1}}}}),
        ("json", {"fields": {"a": {"scorer": "json"}}}),
    ],
)
def test_wrong_options_are_refused_with_their_key(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(OptionsError) as refused:
        find_scorer(name).parse(options)
    assert mentions(refused.value.message, name, next(iter(options)))


def test_an_unknown_scorer_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownScorerError) as refused:
        find_scorer("numbr")
    assert refused.value.code == "scorer-unknown" and mentions(refused.value.message, "number", "anls")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-3.5", -3.5),
        ("−3", -3),
        ("$1,250.00", 1250),
        ("1 250", 1250),
        ("1\u202f250", 1250),
        ("1'250'000", 1250000),
        (".5", 0.5),
        ("**7**.", 7),
        ("(7)", 7),
        ("12.50€", 12.5),
        ("€ 12.50", 12.5),
        ("-$5", -5),
        ("$-5", -5),
        ("5 km/h", 5),
        ("1e3", 1000),
        ("Answer: 4", 4),
        ("answer:4", 4),
        ("x=4", 4),
        ("١٠", 10),
        ("1,25", 1.25),
        ("1,250", 1250),
        ("0,500", 0.5),
        ("1.250,50", 1250.5),
        ("1.234.567", 1234567),
        ("1.25,0,0", None),
        ("12,34,567", None),
        ("3 or 4", None),
        ("3 400 dogs", None),
        ("12:30", None),
        ("10x20", None),
        ("A4", None),
        ("5/6", None),
        ("10-20", None),
        ("1.2.3", None),
        ("1e999999999", None),
        ("9" * 90, None),
        ("twelve", None),
        ("", None),
        ("NaN", None),
        ("inf", None),
        ("²", None),
    ],
)
def test_a_number_is_read_as_written_or_not_at_all(text: str, value: float | None) -> None:
    score = find_scorer("number").score(text, 1 if value is None else value)
    assert score.valid == (value is not None), score
    assert score.correct == (value is not None)


def test_tolerances_hold_at_their_very_edge() -> None:
    number = find_scorer("number")
    for truth in ("1", "0.1", "3", "7", "1e-9", "123456789"):
        exact = float(truth)
        assert number.score(f"{truth}", truth, {"tolerance": 0.0}).correct
        assert not number.score(f"{exact * 1.0500001}", truth, {"tolerance": 0.05}).correct
    assert number.score("1.05", "1", {"tolerance": 0.05}).correct, "1.05 − 1 is above 0.05 in floats"
    assert number.score("0.3", "0.1", {"absolute": 0.2}).correct
    assert number.score("1.250,5", "1250.5", {"decimal": "."}).valid is False
    assert number.score("1.250,5", "1250,5", {"decimal": ","}).correct
    assert number.score("5%", "5").correct and number.score("5 percent", 0.05, {"percent": "share"}).correct
    assert not number.score("5 apples", 5, {"words": False}).valid and number.score("5 %", 5, {"words": False}).correct


@given(st.integers(-(10**12), 10**12), st.sampled_from([",", "'", "\u202f"]))
def test_grouped_thousands_are_the_number(value: int, mark: str) -> None:
    assert find_scorer("number").score(f"{value:,}".replace(",", mark), value).correct


def test_what_counts_in_an_exact_comparison() -> None:
    exact = find_scorer("exact")
    assert exact.score(" “Circle”. ", "circle").correct and not exact.score("-5", "5").correct
    assert not exact.score("15", "1.5").correct and not exact.score("5%", "5").correct
    assert not exact.score("dont", "don't").correct and exact.score("cafe\u0301", "café").correct
    assert exact.score("2", 2).correct and exact.score("2.5", [1, 2.5]).correct
    assert not exact.score("a  b", "a b", {"spaces": True}).correct
    assert not exact.score("Circle.", "circle", {"punctuation": True}).correct
    assert exact.score("the cat", "Cat", {"articles": False}).correct
    assert not exact.score("", "x").valid and exact.score("", "").correct


@pytest.mark.parametrize(
    ("answer", "choice"),
    [
        ("A blue square", "B"),
        ("A blue square, I am quite sure of it", "B"),
        ("The USA won the match of the year", None),
        ("b", None),
        ("", None),
        ("B.", "B"),
        ("Answer:B", "B"),
        ("I think (A), no, (C) is right", "C"),
    ],
)
def test_a_choice_is_named_or_it_is_none(answer: str, choice: str | None) -> None:
    choices = {"A": "a red circle", "B": "a blue square", "C": "two circles"}
    assert find_scorer("choice").score(answer, "B", {"choices": choices}).details.get("choice") == choice


def test_a_catastrophic_pattern_ends_at_its_limit() -> None:
    import time

    began = time.monotonic()
    score = find_scorer("regex").score("a" * 40 + "!", r"(a|aa)+$")
    assert time.monotonic() - began < 5 and not score.correct
    assert score.valid is False or score.reason == ""


def test_boxes_are_matched_one_to_one() -> None:
    boxes = find_scorer("boxes")
    twice = json.dumps([[0, 0, 10, 10], [0, 0, 10, 9]])
    assert boxes.score(twice, [[0, 0, 10, 10]]).score == pytest.approx(2 / 3)
    # Greedy by overlap would take the first pair and lose the second.
    given = json.dumps([[0, 0, 10, 10], [0, 0, 10, 6]])
    assert boxes.score(given, [[0, 0, 10, 9], [0, 0, 10, 18]]).details["matches"] == 2
    labelled = '```json\n[{"bbox_2d": [0, 0, 10, 10], "label": "Cup"}]\n```'
    assert boxes.score(labelled, {"bbox_2d": [0, 0, 10, 10], "label": "cup"}, {"labels": True}).correct
    assert not boxes.score(labelled, {"bbox_2d": [0, 0, 10, 10], "label": "mug"}, {"labels": True}).correct
    assert boxes.score("[0, 0, 500, 500]", [0, 0, 50, 25], {"unit": "thousandths", "size": [100, 50]}).correct
    assert not boxes.score("none", [0, 0, 1, 1]).valid and boxes.score("[]", []).correct


def test_vqa_is_official_with_ten_answers_and_sensible_with_fewer() -> None:
    vqa, official = find_scorer("vqa"), find_scorer("textvqa")
    for matches in range(11):
        answers = ["stop"] * matches + [f"other {n}" for n in range(10 - matches)]
        assert vqa.score("Stop.", answers).score == pytest.approx(official.score("Stop.", answers).score)
    assert [vqa.score("a cat", ["cat"] * n).score for n in (1, 2, 3, 5)] == [1.0] * 4
    assert vqa.score("dog", ["cat"]).score == 0


def test_the_identity_holds_name_version_and_what_is_no_default() -> None:
    assert identity("counting") == "counting/1" and identity("naming", {}) == "naming/1"
    assert identity("textvqa").startswith("textvqa/1 (official")
    assert identity("number") == identity("number", {"tolerance": 0.0}) == "number/1"
    assert identity("number", {"tolerance": 0.05}) not in {identity("number"), identity("number", {"tolerance": 0.1})}
    with pytest.raises(OptionsError):
        identity("number", {"near": 1})


def test_the_old_door_gives_what_the_registry_gives() -> None:
    scored = scorers.score("anls", "abcx", ["abcd"])
    assert (scored.partial, scored.reward, scored.all_correct, scored.valid) == (0.75, 0.75, False, True)
    assert scorers.score("number", "10.4", "10", {"tolerance": 0.05}).all_correct
    assert scorers.fitting_scorers("circle")[0] == "naming" and scorers.fitting_scorers("7")[0] == "number"
    with pytest.raises(ScoringError):
        scorers.score("textvqa", "x", ["a"])


spans = st.tuples(st.integers(0, 12), st.integers(0, 4)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(st.lists(spans, max_size=6), spans)
def test_a_letter_is_inside_a_text_exactly_when_one_text_covers_it(texts: list[tuple[int, int]], letter: Any) -> None:
    covered = any(start <= letter[0] and letter[1] <= end and end - start > 1 for start, end in texts)
    assert _Spans(texts).hold(letter) == covered


@pytest.mark.parametrize(
    ("piece", "choices"), [("(A) (B)", ["A", "B"]), ("(A) (B)", ["x", "y"]), ("(A) (B) ", ["(A) (B)", "(B)"])]
)
def test_a_long_answer_takes_no_longer_than_its_length(piece: str, choices: list[str]) -> None:
    began = time.monotonic()
    find_scorer("choice").score(piece * 20_000, "A", {"choices": choices})
    assert time.monotonic() - began < 5
