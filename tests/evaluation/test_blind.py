"""The same questions without their images: how images are taken away, what that shows, and gates on it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from evaluated import Bench
from hypothesis import given, settings
from hypothesis import strategies as st
from judged import N, lines_of, write_lines
from PIL import Image
from refusals import mentions, refused

from vlmconsole.data.example import Example, ExampleTurn
from vlmconsole.data.rows import IMAGE_TAG
from vlmconsole.evaluation.blind import GREY, blinded
from vlmconsole.evaluation.items import Item
from vlmconsole.evaluation.settings import Blind
from vlmconsole.gates.evidence import check_blind
from vlmconsole.gates.samples import asked_hash, images_hash, read_side
from vlmconsole.gates.verdict import judge

PLANNED: dict[str, Any] = {
    "blind": "grey",
    "intervals": "bounded",
    "generations": {"evaluation": 6 * N, "blind": 3 * N},
    "gates": [
        {"group": "regular", "metric": "sight_gain_ci_low", "above": 0.0},
        {"group": "naming", "metric": "sight_gain", "at_least": 0.9},
        {"group": "hollow", "metric": "valid", "at_least": 0.5},
    ],
    "conditions": {},
}


def png(colour: int, size: tuple[int, int] = (8, 6)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, (colour, 0, 0)).save(out, "PNG")
    return out.getvalue()


def item(at: int, *images: bytes) -> Item:
    turn = ExampleTurn("user", IMAGE_TAG * len(images) + "\nWhich?")
    example = Example(str(at), images, (turn,), "a", "exact")
    hashes = images_hash(example.image_sha256s), images_hash(example.pixel_sha256s)
    return Item(str(at), "g", "exact", "d", "test", example, *hashes, asked_hash(example), "a")


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=2, max_size=12).filter(lambda colours: len(set(colours)) > 1),
    st.integers(0, 9),
)
def test_a_swap_never_shows_the_same_pixels_and_is_the_same_again(colours: list[int], seed: int) -> None:
    items = [item(at, png(colour)) for at, colour in enumerate(colours)]
    swapped = blinded(items, "swap", seed)
    assert [one.id for one in swapped] == [one.id for one in items]
    assert all(one.pixel_sha256 != other.pixel_sha256 for one, other in zip(items, swapped, strict=True))
    assert all(one.prompt_sha == other.prompt_sha for one, other in zip(items, swapped, strict=True))
    assert [one.picture_sha256 for one in swapped] == [one.picture_sha256 for one in blinded(items, "swap", seed)]


def test_grey_keeps_sizes_none_keeps_words_and_text_alone_is_left_out() -> None:
    items = [item(0, png(1, (12, 9)), png(2, (5, 4))), item(1)]
    (grey,) = blinded(items, "grey", 1)
    images = [Image.open(io.BytesIO(image)) for image in grey.example.images]
    assert [image.size for image in images] == [(12, 9), (5, 4)]
    assert all(image.getextrema() == tuple((level, level) for level in GREY) for image in images)
    (none,) = blinded(items, "none", 1)
    assert none.example.images == () and none.example.question == "Which?"
    assert none.prompt_sha == items[0].prompt_sha and none.picture_sha256 != items[0].picture_sha256
    none.example.check()


def test_nothing_to_take_away_or_to_swap_is_refused() -> None:
    with refused("blind-imageless", "image"):
        blinded([item(0), item(1)], "grey", 1)
    with refused("blind-alike", "0"):
        blinded([item(0, png(1)), item(1, png(1))], "swap", 1)


@pytest.mark.parametrize("how", ["grey", "swap", "none"])
def test_a_model_that_looks_has_a_gain_and_one_that_does_not_has_none(tmp_path: Path, how: Blind) -> None:
    bench = Bench(tmp_path)
    run, looking = bench.attempt(plan=False, paired=False, blind=how, looking=True)
    sight = looking.answer()["blind"]
    assert (sight["how"], sight["score"], sight["sight_gain"], sight["n"]) == (how, 0.0, 1.0, 3 * N)
    assert sight["low"] > 0.7 and len(lines_of(run, "blind.jsonl")) == 3 * N
    assert run.read_json("conditions.json")["blind"]["n"] == 3 * N
    _, guessing = bench.attempt(plan=False, paired=False, blind=how)
    sight = guessing.answer()["blind"]
    assert sight["sight_gain"] == 0.0 and sight["low"] < 0 < sight["high"]


def test_gates_hold_what_the_images_are_worth(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    run, evaluation = bench.attempt(planned=PLANNED, blind="grey", looking=True)
    evaluation.answer()
    verdict = judge(run, bench.ledger)
    assert {gate.gate.metric: gate.verdict for gate in verdict.gates} == {
        "sight_gain_ci_low": "PASS",
        "sight_gain": "PASS",
        "valid": "PASS",
    }
    assert verdict.to_json()["groups"]["regular"]["blind"]["sight_gain"] == 1.0
    lines = lines_of(run, "blind.jsonl")
    write_lines(run, "blind.jsonl", lines[1:])
    short = {gate.gate.metric: gate for gate in judge(run, bench.ledger).gates}
    assert short["sight_gain_ci_low"].verdict == "CANNOT JUDGE" and mentions(short["sight_gain_ci_low"].why, "blind")


def test_blind_answers_that_saw_the_image_or_are_not_scored_as_they_say_are_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    run, evaluation = bench.attempt(planned=PLANNED, blind="grey", looking=True)
    evaluation.answer()
    after, lines = lines_of(run, "after.jsonl"), lines_of(run, "blind.jsonl")
    lines[0]["picture_sha256"] = after[0]["picture_sha256"]
    lines[1] |= {"partial": 1.0, "all_correct": True, "valid": True, "reward": 1.0}
    write_lines(run, "blind.jsonl", lines)
    group = judge(run, bench.ledger).plan.groups[0]  # type: ignore[union-attr]
    problems = check_blind(group, read_side(run.file("after.jsonl")), read_side(run.file("blind.jsonl")))
    assert {problem.ids for problem in problems} == {(lines[0]["id"],), (lines[1]["id"],)}
    assert mentions(" ".join(problem.text for problem in problems), "saw the image", "scores")


def test_blind_answers_are_taken_over_by_a_later_attempt(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    run, evaluation = bench.attempt(plan=False, paired=False, blind="grey", looking=True)
    evaluation.answer()
    again, resumed = bench.attempt(run, plan=False, paired=False, blind="grey", looking=True)
    asked = len(bench.asked)
    assert resumed.answer()["taken_over"] == 6 * N and len(bench.asked) == asked
    assert len(lines_of(again, "blind.jsonl")) == 3 * N
