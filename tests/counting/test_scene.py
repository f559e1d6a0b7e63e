"""Scenes: the same from the same seed, nothing overlapping, and the truth beside the picture true."""

import hashlib
import json

import numpy as np
import pytest
from scipy import ndimage

from vlmconsole.counting import questions
from vlmconsole.counting.layout import PITCH, SIDE
from vlmconsole.counting.look import PALETTES, PLAIN
from vlmconsole.counting.scene import GROUPS, KINDS, Scene, Thing, Wanted, check, compose, label_json, make_scene


def areas(mask: np.ndarray) -> int:
    """How many separate areas (eight neighbours) a mask has."""
    return int(ndimage.label(mask, structure=np.ones((3, 3)))[1])


def digest(scene: Scene) -> str:
    return hashlib.sha256(scene.draw().tobytes()).hexdigest()


@pytest.mark.parametrize("group", GROUPS)
def test_same_seed_same_pixels(group: str) -> None:
    one, two, other = make_scene(5, group), make_scene(5, group), make_scene(6, group)
    assert one == two and digest(one) == digest(two)
    assert digest(one) != digest(other)
    assert one.draw().size == (SIDE, SIDE) and one.draw().mode == "RGB"


def test_pixels_are_those_of_every_machine() -> None:
    """Pinned: a change of these bytes would silently change every data set made from a seed."""
    together = hashlib.sha256()
    for group in GROUPS:
        for seed in range(4):
            together.update(make_scene(seed, group, hollow=0.5 if seed == 3 else None).draw().tobytes())
    assert together.hexdigest()[:16] == "ac1638cb2cabbd30"


@pytest.mark.parametrize("group", GROUPS)
def test_scenes_pass_their_own_check(group: str) -> None:
    for seed in range(40):
        assert check(make_scene(seed, group)) == []
        assert check(make_scene(seed, group, hollow=0.5, varied=True)) == []


@pytest.mark.parametrize("group", ["regular", "scattered", "dense", "hollow", "high"])
def test_counts_seen_in_the_pixels(group: str) -> None:
    """Counting the coloured areas of the drawn picture gives the label: no object touches or hides another."""
    for seed in range(3):
        scene = make_scene(seed, group)
        pixels = np.asarray(scene.draw(), dtype=int)
        for colour in ("red", "blue"):
            exact = (np.abs(pixels - np.array(PALETTES["plain"][colour])).sum(axis=2)) == 0
            assert areas(exact) == sum(t.colour == colour for t in scene.things)
        other = (pixels != 255).any(axis=2)
        assert areas(other) == len(scene.things)


@pytest.mark.parametrize("group", ["regular", "scattered", "dense", "hollow"])
def test_full_boards_fit(group: str) -> None:
    for seed in range(10):
        scene = make_scene(seed, group, red=12, blue=12, others=6, varied=True)
        assert scene.label == {"red_circles": 12, "blue_squares": 12}
        assert len(scene.things) == 30
        assert check(scene) == []
    assert check(compose("full", [Wanted("red", "circle")] * 64)) == []
    with pytest.raises(ValueError, match="64 places"):
        compose("more", [Wanted("red", "circle")] * 65)


def test_counts_and_groups_as_asked() -> None:
    for red in range(0, 13, 4):
        for blue in range(0, 13, 4):
            assert make_scene(1, red=red, blue=blue).label == {"red_circles": red, "blue_squares": blue}
    high = [make_scene(seed, "high").label for seed in range(30)]
    assert all(8 <= n <= 12 for label in high for n in label.values())
    assert all(t.hollow for t in make_scene(3, "hollow").things)
    assert {make_scene(seed).look for seed in range(10)} == {PLAIN}
    assert len({make_scene(seed, "variants").look for seed in range(30)}) > 20
    with pytest.raises(ValueError, match="regular"):
        make_scene(1, "unheard-of")


def test_one_centre_a_place() -> None:
    for group in GROUPS:
        for seed in range(10):
            places = [(t.x // PITCH, t.y // PITCH) for t in make_scene(seed, group, red=9, blue=9).things]
            assert len(set(places)) == len(places)


def test_check_sees_what_is_wrong() -> None:
    touching = Scene(
        "x", "regular", (Thing("red", "circle", 100, 100, 20), Thing("blue", "square", 120, 100, 20)), PLAIN
    )
    assert "touches" in check(touching)[0]
    outside = Scene("x", "regular", (Thing("red", "circle", 5, 100, 20),), PLAIN)
    assert "leaves the picture" in check(outside)[0]


def test_truth_is_plain_json() -> None:
    truth = json.loads(json.dumps(make_scene(2, "hollow").truth()))
    assert set(truth) >= {"label", "objects", "group", "seed"}
    assert set(truth["objects"][0]) >= {"colour", "shape", "x", "y", "radius", "hollow"}
    assert label_json({"red_circles": 3, "blue_squares": 2}) == '{"red_circles": 3, "blue_squares": 2}'
    assert label_json({"red_circles": 3, "blue_squares": 2}) in questions.COUNT_PROMPT


def test_questions_are_true() -> None:
    """Each answer follows from the object list, worked out here another way."""
    seen = set()
    for seed in range(150):
        asked = questions.question_set(f"test:{seed}")
        assert asked.scene is not None and check(asked.scene) == []
        things = asked.scene.things
        for kind, (text, answer) in zip(asked.kinds, asked.pairs, strict=True):
            seen.add(kind)
            words = text.rstrip("?.").replace(",", "").split()
            if kind == "colour":
                assert [t.colour for t in things if t.shape == words[-1]] == [answer]
            elif kind == "shape":
                colour = next(w for w in words if w in {c for c, _ in KINDS})
                assert [t.shape for t in things if t.colour == colour] == [answer]
            elif kind == "yes_no":
                assert (" ".join(words[-2:]) in {t.name for t in things}) == (answer == "yes")
            elif kind == "how_many":
                assert sum(t.name + "s" == " ".join(words[2:4]) for t in things) == int(answer)
            elif kind == "larger":
                named = [t for t in things if t.name in text]
                best = (min if "smaller" in text else max)(named, key=lambda t: t.radius)
                assert len(named) == 2 and answer == f"the {best.name}"
            elif kind == "describe":
                assert {part.removeprefix("a ") for part in answer.split(", ")} == {t.name for t in things}
    assert seen == set(questions.ASKERS)


def test_crowds_are_asked_what_is_true_of_all() -> None:
    asked = 0
    for seed in range(40):
        crowd = questions.crowd_set(f"test:{seed}")
        assert crowd.scene is not None and check(crowd.scene) == []
        things = crowd.scene.things
        for kind, (text, answer) in zip(crowd.kinds, crowd.pairs, strict=True):
            words = text.rstrip("?").split()
            if kind == "colour":
                assert {t.colour for t in things if t.shape == words[-1].removesuffix("s")} == {answer}
            elif kind == "shape" and len(words) == 4:
                assert {t.shape for t in things if t.colour == words[-1]} == {answer}
            asked += 1
    assert asked > 100


def test_small_talk_has_no_picture() -> None:
    assert questions.outside_chat("1").scene is None
