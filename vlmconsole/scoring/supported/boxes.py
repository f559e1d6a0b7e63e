"""`boxes`: predicted boxes against true ones, matched one to one by their overlap."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field
from scipy.optimize import linear_sum_assignment

from vlmconsole.scoring.scorer import Score, Scorer, ScorerExample, ScorerOptions

MOST_BOXES = 1000
_ROUNDING = 0.5  # pixels by which a true box may reach out of its image
LARGEST = 1e9  # of an edge: no image is larger, and areas stay finite
_FENCE = re.compile(r"```(?:json)?\s*(.*?)\s*```", re.DOTALL)


class BoxesOptions(ScorerOptions):
    """What a match is, and what the model's numbers mean."""

    threshold: float = Field(0.5, gt=0, le=1, description="Least overlap (IoU) of a match")
    labels: bool = Field(False, description="Matched boxes must have the same label, case ignored")
    unit: Literal["pixels", "thousandths"] = Field(
        "pixels", description="Of the answer: pixels of the sent image (Qwen2.5-VL), or thousandths of it (Qwen3-VL)"
    )
    size: tuple[int, int] | None = Field(None, description="Width and height of the sent image, for thousandths")


@dataclass(frozen=True)
class LabelledBox:
    """Corners in pixels, and a label ("": none)."""

    x1: float
    y1: float
    x2: float
    y2: float
    label: str = ""

    @property
    def area(self) -> float:
        return max(0.0, self.x2 - self.x1) * max(0.0, self.y2 - self.y1)


class BoxesScorer(Scorer[BoxesOptions]):
    """2 · matches / (predicted + true) boxes at the threshold; `details` hold the true boxes' mean overlap, `iou`.

    Answers are JSON: `[x1, y1, x2, y2]`, a list of such, or Qwen's `[{"bbox_2d": […], "label": …}]`, in a code fence
    or not. The matching is the one-to-one assignment with the most matches, then the largest overlap.
    """

    name = "boxes"
    summary = "Boxes matched one to one by overlap (IoU) at a threshold"
    truth_form = 'box [x1, y1, x2, y2], {"bbox_2d": box, "label": text}, or list of them, in pixels of the sent image'
    reads = (str, list, tuple, dict)
    row_option = ""
    Options = BoxesOptions
    examples = (
        ScorerExample('[{"bbox_2d": [0, 0, 10, 10], "label": "cup"}]', [0, 0, 10, 10], 1.0),
        ScorerExample("[[0, 0, 10, 10], [50, 50, 60, 60]]", [[0, 0, 10, 10]], 2 / 3),
        ScorerExample("[0, 0, 3, 10]", [0, 0, 10, 10], 0.0),
    )

    def _check(self, truth: Any, options: BoxesOptions) -> str:
        boxes = read_boxes(truth) if not isinstance(truth, str) else _from_text(truth)
        if boxes is None:
            return "the truth must be a box [x1, y1, x2, y2] with x1 ≤ x2 and y1 ≤ y2, or a list of boxes"
        if options.labels and not all(box.label for box in boxes):
            return "labels are compared, and a true box has none"
        if options.unit == "thousandths" and options.size is None:
            return "size, of the sent image, is needed where answers are in thousandths of it"
        return ""

    def misplaced(self, truth: Any, sizes: Sequence[tuple[int, int]]) -> str:
        boxes = (_from_text(truth) if isinstance(truth, str) else read_boxes(truth)) or []
        for box in boxes if sizes else ():
            if not any(_inside(box, *size) for size in sizes):
                edges = ", ".join(f"{edge:g}" for edge in (box.x1, box.y1, box.x2, box.y2))
                images = " and ".join(f"{width}×{height}" for width, height in dict.fromkeys(sizes))
                return f"the box [{edges}] reaches out of its image of {images}: edges are pixels of the sent image"
        return ""

    def _score(self, prediction: Any, truth: Any, options: BoxesOptions) -> Score:
        given = _from_text(prediction) if isinstance(prediction, str) else read_boxes(prediction)
        wanted = (_from_text(truth) if isinstance(truth, str) else read_boxes(truth)) or []
        if given is None:
            return Score(0.0, False, False, "no box could be read", {"iou": None})
        if options.unit == "thousandths" and options.size is not None:
            given = [_scaled(box, *options.size) for box in given]
        overlaps = match_boxes(given, wanted, options)
        matches = sum(overlap >= options.threshold for overlap in overlaps)
        total = len(given) + len(wanted)
        score = 2 * matches / total if total else 1.0
        mean = sum(overlaps) / len(wanted) if wanted else None
        return Score(score, score == 1.0, details={"iou": mean, "matches": matches, "predicted": len(given)})


def _inside(box: LabelledBox, width: int, height: int) -> bool:
    return min(box.x1, box.y1) >= -_ROUNDING and box.x2 <= width + _ROUNDING and box.y2 <= height + _ROUNDING


def box_overlap(first: LabelledBox, second: LabelledBox) -> float:
    """Intersection over union of two boxes, from 0 to 1; 0 where both are empty."""
    width = min(first.x2, second.x2) - max(first.x1, second.x1)
    height = min(first.y2, second.y2) - max(first.y1, second.y1)
    shared = max(0.0, width) * max(0.0, height)
    union = first.area + second.area - shared
    return shared / union if union > 0 else 0.0


def match_boxes(given: Sequence[LabelledBox], wanted: Sequence[LabelledBox], options: BoxesOptions) -> list[float]:
    """Return the overlaps of the pairs of a one-to-one matching: the most at the threshold, then the largest sum."""
    if not given or not wanted:
        return []
    overlaps = np.array([[_overlap(box, truth, options.labels) for truth in wanted] for box in given])
    # A match outweighs any sum of overlaps below the threshold.
    rows, columns = linear_sum_assignment(overlaps + (overlaps >= options.threshold) * (len(wanted) + 1), maximize=True)
    return [float(overlap) for overlap in overlaps[rows, columns]]


def _overlap(box: LabelledBox, truth: LabelledBox, labels: bool) -> float:
    if labels and box.label.strip().casefold() != truth.label.strip().casefold():
        return 0.0
    return box_overlap(box, truth)


def read_boxes(value: Any) -> list[LabelledBox] | None:
    """Boxes from a JSON value; an empty list is no box; None where the value is something else."""
    if isinstance(value, dict) or (
        isinstance(value, list | tuple) and len(value) == 4 and not isinstance(value[0], list | tuple | dict)
    ):
        value = [value]
    if not isinstance(value, list | tuple) or len(value) > MOST_BOXES:
        return None
    boxes = [_box(item) for item in value]
    return None if any(box is None for box in boxes) else [box for box in boxes if box is not None]


def _box(value: Any) -> LabelledBox | None:
    label = ""
    if isinstance(value, dict):
        label = value.get("label", "")
        value = next((value[key] for key in ("bbox_2d", "bbox", "box") if key in value), None)
    if not isinstance(value, list | tuple) or len(value) != 4 or not isinstance(label, str):
        return None
    if any(isinstance(edge, bool) or not isinstance(edge, int | float) or not abs(edge) <= LARGEST for edge in value):
        return None
    x1, y1, x2, y2 = map(float, value)
    return LabelledBox(x1, y1, x2, y2, label) if x1 <= x2 and y1 <= y2 else None


def _from_text(text: str) -> list[LabelledBox] | None:
    fence = _FENCE.search(text)
    try:
        return read_boxes(json.loads(fence[1] if fence else text))
    except (ValueError, RecursionError):
        return None


def _scaled(box: LabelledBox, width: int, height: int) -> LabelledBox:
    across, down = width / 1000, height / 1000
    return LabelledBox(box.x1 * across, box.y1 * down, box.x2 * across, box.y2 * down, box.label)


SCORER = BoxesScorer()
