"""Labels from pixels alone: right on every group, and not fooled by things that touch, hide or disguise."""

from __future__ import annotations

from collections import Counter

import pytest
from PIL import Image, ImageDraw

from vlmconsole.counting.explore import EXPLORATORY, LEAST_VISIBLE, explore_scene, visible_shares
from vlmconsole.counting.pixels import SURE, count, find_objects
from vlmconsole.counting.scene import GROUPS, TARGETS, make_scene

RED, BLUE = (220, 40, 40), (40, 80, 220)


@pytest.mark.parametrize("group", GROUPS)
def test_what_is_seen_is_what_was_painted(group: str) -> None:
    for seed in range(8):
        scene = make_scene(f"pixels{seed}", group)
        found = find_objects(scene.draw())
        assert Counter(one.name for one in found) == Counter(thing.name for thing in scene.things)
        assert sum(one.hollow for one in found) == sum(thing.hollow for thing in scene.things)
        assert all(one.fit > SURE for one in found)
        for thing in scene.things:
            near = [o for o in found if o.name == thing.name and max(abs(o.x - thing.x), abs(o.y - thing.y)) <= 3]
            assert near, f"{thing} of seed {seed} was not found where it stands"


def test_grainy_neighbours_three_pixels_apart_stay_two() -> None:
    """Two bright circles on a dark grainy ground once ran together under the smoothing."""
    for seed in range(12):
        scene = make_scene(f"near{seed}", "dense", red=9, blue=9, varied=True)
        found = find_objects(scene.draw())
        assert count(found, *TARGETS["red_circles"]) == 9 and count(found, *TARGETS["blue_squares"]) == 9


def drawn(*shapes: tuple[str, tuple[int, int, int], tuple[int, int, int, int]]) -> Image.Image:
    """Shapes drawn by other code than the generator's."""
    picture = Image.new("RGB", (448, 448), "white")
    pen = ImageDraw.Draw(picture)
    for kind, colour, box in shapes:
        if kind == "triangle":
            left, top, right, bottom = box
            pen.polygon([(left, bottom), (right, bottom), ((left + right) // 2, top)], fill=colour)
        else:
            {"circle": pen.ellipse, "square": pen.rectangle}[kind](box, fill=colour)
    return picture


def test_pictures_that_the_generator_never_drew() -> None:
    square, triangle = ("square", BLUE, (100, 100, 140, 140)), ("triangle", BLUE, (200, 20, 260, 72))
    picture = drawn(("circle", RED, (10, 10, 60, 60)), square, triangle)
    assert [one.name for one in find_objects(picture)] == ["red circle", "blue triangle", "blue square"]
    assert find_objects(Image.new("RGB", (448, 448), (16, 32, 40))) == []


def test_touching_objects_of_one_colour_are_no_single_whole_shape() -> None:
    found = find_objects(drawn(("circle", RED, (100, 100, 150, 150)), ("circle", RED, (140, 100, 190, 150))))
    assert len(found) == 1 and found[0].fit < SURE


def test_a_target_covered_in_part_is_no_whole_circle() -> None:
    found = find_objects(drawn(("circle", RED, (100, 100, 160, 160)), ("square", BLUE, (130, 90, 180, 170))))
    assert next(one for one in found if one.colour == "red").fit < SURE


@pytest.mark.parametrize("group", EXPLORATORY)
def test_exploratory_scenes_hold_the_counts_and_stay_in_sight(group: str) -> None:
    red, blue = (15, 18) if group == "beyond" else (4, 6)
    for seed in range(4):
        scene = explore_scene(f"x{seed}", group, red=red, blue=blue)
        assert scene.label == {"red_circles": red, "blue_squares": blue} and scene.group == group
        shares = visible_shares(scene)
        assert min(shares) >= LEAST_VISIBLE
        assert (min(shares) < 1.0) is (group != "beyond")
        assert explore_scene(f"x{seed}", group, red=red, blue=blue).png() == scene.png()
    with pytest.raises(ValueError, match="no exploratory group"):
        explore_scene("x", "dense", red=1, blue=1)
