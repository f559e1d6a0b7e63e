"""The scorers: strict counting answers, the official TextVQA score, paired intervals against golden values."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from folders import DATA
from hypothesis import given
from hypothesis import strategies as st

from vlmconsole.scoring.answer import FIELDS, LARGEST_COUNT, CountAnswer, Invalid, parse_counts
from vlmconsole.scoring.intervals import mcnemar, mcnemar_p, paired_interval
from vlmconsole.scoring.reward import TruthError, read_truth, score_counts
from vlmconsole.scoring.textvqa import normalise, soft_score
from vlmconsole.scoring.verl_reward import compute_score

TEXTVQA: dict[str, Any] = json.loads((DATA / "textvqa.json").read_text(encoding="utf-8"))
STATISTICS: dict[str, Any] = json.loads((DATA / "statistics.json").read_text(encoding="utf-8"))
GOLDEN_SEED = 20240601  # the seed that the golden intervals were made with

RIGHT = '{"red_circles": 3, "blue_squares": 2}'


@pytest.mark.parametrize(
    "text",
    [
        RIGHT,
        '{"blue_squares":2,"red_circles":3}',
        f" \n\t{RIGHT}\r\n ",
        '{\n  "red_circles": 3,\n  "blue_squares": 2\n}',
        '{"\\u0072ed_circles": 3, "blue_squares": 2}',
    ],
)
def test_valid_answers(text: str) -> None:
    assert parse_counts(text) == CountAnswer(3, 2)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("   ", "empty"),
        (None, "no answer"),
        (3, "no answer"),
        ("three and two", "not JSON"),
        ("{", "not JSON"),
        ("{'red_circles': 3, 'blue_squares': 2}", "not JSON"),
        ('{"red_circles": 3, "blue_squares": 2,}', "not JSON"),
        ('{"red_circles": 03, "blue_squares": 2}', "not JSON"),
        ('{"red_circles": +3, "blue_squares": 2}', "not JSON"),
        (RIGHT + " done", "text after"),
        (RIGHT + RIGHT, "text after"),
        (RIGHT + ".", "text after"),
        (RIGHT + "\u00a0", "text after"),
        ("Answer: " + RIGHT, "text before"),
        ("```json\n" + RIGHT + "\n```", "text before"),
        ("\ufeff" + RIGHT, "text before"),
        ("[3, 2]", "JSON object"),
        ("[" + RIGHT + "]", "JSON object"),
        ("5", "JSON object"),
        ("null", "JSON object"),
        ('"' + "x" * 9 + '"', "JSON object"),
        ("{}", "missing field red_circles"),
        ('{"red_circles": 3}', "missing field blue_squares"),
        ('{"Red_circles": 3, "blue_squares": 2}', "missing field red_circles"),
        ('{"red_circles": 3, "blue_squares": 2, "note": "x"}', "extra fields"),
        ('{"red_circles": 3, "blue_squares": 2, "red_circles": 3}', "given twice"),
        ('{"red_circles": 3, "\\u0072ed_circles": 4, "blue_squares": 2}', "given twice"),
        ('{"red_circles": 3, "blue_squares": {"a": 1, "a": 1}}', "given twice"),
        ('{"red_circles": true, "blue_squares": 2}', "a boolean"),
        ('{"red_circles": 3.0, "blue_squares": 2}', "not whole"),
        ('{"red_circles": 3e0, "blue_squares": 2}', "not whole"),
        ('{"red_circles": NaN, "blue_squares": 2}', "not whole"),
        ('{"red_circles": Infinity, "blue_squares": 2}', "not whole"),
        ('{"red_circles": -Infinity, "blue_squares": 2}', "not whole"),
        ('{"red_circles": "3", "blue_squares": 2}', "is text"),
        ('{"red_circles": null, "blue_squares": 2}', "is null"),
        ('{"red_circles": [3], "blue_squares": 2}', "a list"),
        ('{"red_circles": {"n": 3}, "blue_squares": 2}', "an object"),
        ('{"red_circles": -1, "blue_squares": 2}', "negative"),
        ('{"red_circles": -0, "blue_squares": 2}', "negative"),
        ('{"red_circles": 10000, "blue_squares": 2}', "too large"),
        ('{"red_circles": ' + "9" * 100_000 + ', "blue_squares": 2}', "too large"),
        ('{"red_circles": 1e999, "blue_squares": 2}', "not whole"),
        ("[" * 100_000, "nested too deeply"),
        ('{"red_circles":' * 50_000 + "1" + "}" * 50_000, "nested too deeply"),
    ],
)
def test_invalid_answers_say_why(text: object, why: str) -> None:
    parsed = parse_counts(text)
    assert isinstance(parsed, Invalid) and why in parsed.reason, parsed
    score = score_counts(text, CountAnswer(3, 2))
    assert (score.reward, score.all_correct, score.partial, score.valid) == (0.0, False, 0.0, False)


counts = st.integers(0, LARGEST_COUNT)


@given(counts, counts, counts, counts)
def test_reward_is_one_half_or_nothing(red: int, blue: int, true_red: int, true_blue: int) -> None:
    answer = json.dumps({"red_circles": red, "blue_squares": blue})
    score = score_counts(answer, CountAnswer(true_red, true_blue))
    right = (red == true_red) + (blue == true_blue)
    assert score.valid and score.reward == score.partial == right / 2 and score.all_correct == (right == 2)


@given(st.text() | st.text('{}[]":, 0123456789.-eEtrufalsn_redcirclsbluq\n'))
def test_any_text_is_judged_and_only_the_format_is_valid(text: str) -> None:
    parsed = parse_counts(text)
    if isinstance(parsed, CountAnswer):
        assert json.loads(text) == {"red_circles": parsed.red_circles, "blue_squares": parsed.blue_squares}
    else:
        assert parsed.reason


@given(
    st.dictionaries(
        st.sampled_from([*FIELDS, "x"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3), st.lists, max_leaves=3
        ),
    )
)
def test_an_object_is_valid_exactly_when_it_is_two_counts(value: dict[str, Any]) -> None:
    wanted = set(value) == set(FIELDS) and all(type(v) is int and 0 <= v <= LARGEST_COUNT for v in value.values())
    assert isinstance(parse_counts(json.dumps(value)), CountAnswer) == wanted


@given(st.integers(0, len(RIGHT)), st.text(min_size=1, max_size=3))
def test_one_edit_anywhere_is_never_read_as_another_right_answer(at: int, piece: str) -> None:
    edited = RIGHT[:at] + piece + RIGHT[at:]
    if score_counts(edited, CountAnswer(3, 2)).all_correct:
        assert json.loads(edited) == json.loads(RIGHT), "only white space and escapes may differ"


def test_the_four_rewards_and_the_truths_forms() -> None:
    truth = read_truth('{"red_circles": 3, "blue_squares": 2}')
    assert truth == read_truth({"red_circles": 3, "blue_squares": 2}) == read_truth(truth)
    assert score_counts(RIGHT, truth).reward == 1
    assert score_counts(RIGHT.replace("3", "4"), truth).reward == 0.5
    assert score_counts(RIGHT.replace("2", "4"), truth).reward == 0.5
    assert score_counts(RIGHT.replace("3", "4").replace("2", "4"), truth).reward == 0
    bad: list[Any] = ["", "3/2", {"red_circles": 3}, {"red_circles": True, "blue_squares": 2}]
    for wrong in bad:
        with pytest.raises(TruthError, match="two counts"):
            read_truth(wrong)


def test_verls_function_gives_the_same_reward() -> None:
    for answer in (RIGHT, RIGHT.replace("3", "4"), "no", RIGHT + "x"):
        result = compute_score(data_source="counting", solution_str=answer, ground_truth=RIGHT, extra_info={"index": 1})
        score = score_counts(answer, CountAnswer(3, 2))
        assert result == {
            "score": score.reward,
            "all_correct": float(score.all_correct),
            "partial": score.partial,
            "valid": float(score.valid),
        }
    with pytest.raises(TruthError):
        compute_score(data_source="counting", solution_str=RIGHT, ground_truth="lost")


def test_verls_file_loads_by_path_alone() -> None:
    import importlib.util

    import vlmconsole.scoring.verl_reward as module

    spec = importlib.util.spec_from_file_location("custom_module", module.__file__)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    assert loaded.compute_score("counting", RIGHT, RIGHT)["score"] == 1.0


@pytest.mark.parametrize("vector", TEXTVQA["normalise"], ids=lambda vector: vector["id"])
def test_official_normalisation(vector: dict[str, Any]) -> None:
    once = normalise(vector["raw"])
    assert once == vector["normalised"]
    assert normalise(once) == vector.get("renormalised", once)


@pytest.mark.parametrize("vector", TEXTVQA["score"], ids=lambda vector: vector["id"])
def test_official_soft_score(vector: dict[str, Any]) -> None:
    score = soft_score(vector["prediction"], vector["answers"])
    if vector["score"] is None:
        assert score is None
    else:
        assert score == pytest.approx(vector["score"], abs=1e-12)


def test_soft_score_by_matches_and_units_kept_apart() -> None:
    for matches, score in TEXTVQA["soft_score_by_matches"].items():
        answers = ["stop"] * int(matches) + [f"other{n}" for n in range(10 - int(matches))]
        assert soft_score("Stop.", answers) == pytest.approx(score, abs=1e-12)
    assert normalise("200ml") != normalise("200 ml")


@given(st.text())
def test_normalised_text_is_lower_case_words_one_space_apart(text: str) -> None:
    assert re.fullmatch(r"(\S+( \S+)*)?", normalise(text))


@pytest.mark.parametrize("golden", STATISTICS["bootstrap"], ids=lambda golden: golden["name"])
def test_paired_bootstrap_equals_the_golden_interval(golden: dict[str, Any]) -> None:
    interval = paired_interval(golden["before"], golden["after"], seed=GOLDEN_SEED)
    assert interval.difference == pytest.approx(golden["mean_diff"], abs=1e-12)
    assert interval.low == pytest.approx(golden["percentile"]["low"], abs=1e-12)
    assert interval.high == pytest.approx(golden["percentile"]["high"], abs=1e-12)
    assert interval.standard_error == pytest.approx(golden["percentile"]["se"], abs=1e-12)
    assert (interval.n, interval.resamples, interval.confidence) == (len(golden["before"]), 9999, 0.95)
    other = paired_interval(golden["before"], golden["after"], seed=1)
    assert other != interval and abs(other.low - interval.low) <= 5 * golden["low_seed_sd_9999"] + 1e-9


@pytest.mark.parametrize("golden", STATISTICS["mcnemar"])
def test_exact_mcnemar_equals_the_golden_probability(golden: dict[str, Any]) -> None:
    assert mcnemar_p(golden["only_before"], golden["only_after"]) == pytest.approx(golden["exact_p"], rel=1e-12)
    pairs = (
        [(True, True)] * golden["both_right"]
        + [(True, False)] * golden["only_before"]
        + [(False, True)] * golden["only_after"]
        + [(False, False)] * golden["both_wrong"]
    )
    result = mcnemar([a for a, _ in pairs], [b for _, b in pairs])
    assert (result.both_right, result.losses, result.wins, result.both_wrong) == tuple(
        golden[key] for key in ("both_right", "only_before", "only_after", "both_wrong")
    )
    assert result.p == pytest.approx(golden["binomtest_p"], rel=1e-12)


def test_intervals_refuse_what_is_not_paired() -> None:
    with pytest.raises(ValueError, match=r"pairs.*\b2\b.*\b3\b"):
        paired_interval([1, 0], [1, 0, 1])
    with pytest.raises(ValueError, match="at least two"):
        paired_interval([1], [0])
    with pytest.raises(ValueError, match="finite"):
        paired_interval([1.0, float("nan")], [0.0, 1.0])
    with pytest.raises(ValueError, match="pairs needed"):
        mcnemar([True], [])
    same = paired_interval([0.5, 1.0, 0.0], [0.5, 1.0, 0.0])
    assert (same.difference, same.low, same.high) == (0, 0, 0)
