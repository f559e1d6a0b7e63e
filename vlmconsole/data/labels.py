"""Comparing a picture's pixels with what is said of it: its truth, and its object list."""

from __future__ import annotations

import json
from typing import Any

from vlmconsole.counting.explore import EXPLORATORY
from vlmconsole.counting.pixels import SURE, Found, count, find_objects
from vlmconsole.data.recipe import NAMING
from vlmconsole.data.rows import Row

NEAR = 3.0  # pixels between a listed centre and the centroid found (a grainy edge moves it by one)
OWN = "own"


def unreadable(group: str) -> bool:
    """Return whether a group's labels cannot be read from connected areas: overlapping things, a user's own photos."""
    return group == OWN or (group in EXPLORATORY and group != "beyond")


def wrong_label(row: Row, facts: dict[str, Any]) -> str:
    """Return what the pixels say against the truth and the object list, in one sentence; empty when they agree.

    `facts` is the picture's line of the object list.
    """
    objects = find_objects(row.image())
    unsure = [each for each in objects if each.fit < SURE]
    if unsure:
        each = unsure[0]
        return f"the {each.colour} area at {each.x:.0f},{each.y:.0f} is no single whole shape (fit {each.fit:.2f})"
    if facts.get("group") == NAMING:
        wrong = _naming(row, objects)
    else:
        try:
            truth = json.loads(row.truth)
            labelled = (truth["red_circles"], truth["blue_squares"])
        except (ValueError, KeyError, TypeError):
            return f"the truth is not two counts: {row.truth!r}"
        seen = (count(objects, "red", "circle"), count(objects, "blue", "square"))
        wrong = (
            ""
            if seen == labelled
            else f"the truth says {labelled[0]}/{labelled[1]}, the pixels show {seen[0]}/{seen[1]}"
        )
    return wrong or _listed(objects, facts.get("objects", []))


def _listed(seen: list[Found], objects: list[dict[str, Any]]) -> str:
    left = list(seen)
    for thing in objects:
        name = f"{thing['colour']} {thing['shape']}"
        hit = next((f for f in left if f.name == name and _near(f, thing)), None)
        if hit is None:
            return f"no {name} is seen at {thing['x']},{thing['y']}"
        left.remove(hit)
    return f"an unlisted {left[0].name} is seen at {left[0].x:.0f},{left[0].y:.0f}" if left else ""


def _near(seen: Found, thing: dict[str, Any]) -> bool:
    return max(abs(seen.x - float(thing["x"])), abs(seen.y - float(thing["y"]))) <= NEAR


def _naming(row: Row, objects: list[Found]) -> str:
    """A naming question names either a shape (and asks its colour) or a colour (and asks its shape)."""
    words = set(row.question.lower().replace("?", " ").split())
    named = [seen for seen in objects if seen.shape in words or seen.colour in words]
    answers = {seen.colour if seen.shape in words else seen.shape for seen in named}
    if len(named) != 1 or answers != {row.truth}:
        return f"{row.question!r} is answered {row.truth!r}, the pixels say {sorted(answers)}"
    return ""
