"""Faults of the data and of the training to plant in a small lab, and how the audit names each."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from audited import END, LAYER, Change, SmallLab, lines_of, write_lines
from PIL import Image, ImageDraw, PngImagePlugin

from vlmconsole.data.rows import Row

# ── faults of the data ─────────────────────────────────────────────────────────────────────────────────────────


def png(image: Image.Image, **more: Any) -> bytes:
    data = io.BytesIO()
    image.save(data, "PNG", **more)
    return data.getvalue()


def swap(at: int, **fields: Any) -> Callable[[list[Row]], list[Row]]:
    return lambda rows: [replace(row, **fields) if n == at else row for n, row in enumerate(rows)]


def leaked(lab: SmallLab, source: str) -> None:
    lab.remake("train", swap(0, picture=lab.rows(source)[0].picture))


def a_test_picture_in_the_training(lab: SmallLab) -> None:
    leaked(lab, "test-regular")


def a_development_picture_in_the_training(lab: SmallLab) -> None:
    leaked(lab, "dev")


def objects_of(lab: SmallLab, split: str, at: int) -> list[dict[str, Any]]:
    found: list[Any] = []
    lab.remake(split, facts=lambda facts: found.extend(facts[at]["objects"]))
    return found


def an_object_half_over_another(lab: SmallLab) -> None:
    thing = next(one for one in objects_of(lab, "train", 0) if one["colour"] == "red")
    image = lab.rows("train")[0].image()
    x, y, r = thing["x"] + thing["radius"], thing["y"], thing["radius"]
    ImageDraw.Draw(image).ellipse((x - r, y - r, x + r, y + r), fill=image.getpixel((thing["x"], thing["y"])))
    lab.remake("train", swap(0, picture=png(image)))


def objects_listed_over_each_other(lab: SmallLab) -> None:
    def move(facts: list[dict[str, Any]]) -> None:
        first, second = facts[0]["objects"][:2]
        second["x"], second["y"] = first["x"] + 5, first["y"]

    lab.remake("train", facts=move)


def an_object_that_cannot_be_seen(lab: SmallLab) -> None:
    others = [[o for o in objects_of(lab, "test-regular", at) if o["colour"] not in ("red", "blue")] for at in range(4)]
    at = next(at for at, things in enumerate(others) if things)
    image = lab.rows("test-regular")[at].image()
    x, y, r = (others[at][0][key] for key in ("x", "y", "radius"))
    ImageDraw.Draw(image).rectangle((x - r - 3, y - r - 3, x + r + 3, y + r + 3), fill=image.getpixel((2, 2)))
    lab.remake("test-regular", swap(at, picture=png(image)))


def a_wrong_label(lab: SmallLab) -> None:
    truth = json.loads(lab.rows("test-regular")[2].truth)
    lab.remake("test-regular", swap(2, truth=json.dumps({**truth, "red_circles": truth["red_circles"] + 1})))


def a_combination_left_out(lab: SmallLab) -> None:
    lab.remake("train", lambda rows: rows[:-1])


def the_truth_inside_the_picture(lab: SmallLab) -> None:
    row = lab.rows("test-regular")[0]
    info = PngImagePlugin.PngInfo()
    info.add_text("answer", row.truth)
    lab.remake("test-regular", swap(0, picture=png(row.image(), pnginfo=info)))


def the_truth_inside_the_question(lab: SmallLab) -> None:
    row = lab.rows("train")[0]
    lab.remake("train", swap(0, question=f"{row.question} Hint: {row.truth}"))


DATA: list[tuple[Change, str, str]] = [
    (a_test_picture_in_the_training, "isolation: training images of mini", "mini:test-regular"),
    (a_test_picture_in_the_training, "isolation: tested images", "mini:train"),
    (a_development_picture_in_the_training, "isolation: development images of mini", "mini:train"),
    (an_object_half_over_another, "mini: non-overlap", "no single whole shape"),
    (objects_listed_over_each_other, "mini: non-overlap", "overlap"),
    (an_object_that_cannot_be_seen, "mini: visibility", "is not seen"),
    (a_wrong_label, "mini: labels", "the pixels show"),
    (a_combination_left_out, "mini: coverage", "0 times, not 1"),
    (the_truth_inside_the_picture, "mini: truth's place", "picture file carries"),
    (the_truth_inside_the_question, "mini: truth's place", "different counting questions"),
]


# ── faults of the training ─────────────────────────────────────────────────────────────────────────────────────


def mask(lab: SmallLab, **fields: Any) -> None:
    value = lab.trained.read_json("mask.json")
    value["each"][1].update(fields)
    lab.trained.write_json("mask.json", value)


def the_prompt_is_taught(lab: SmallLab) -> None:
    mask(lab, supervised_from=3)


def the_question_is_taught(lab: SmallLab) -> None:
    row = lab.rows("train")[1]
    mask(lab, supervised=f"{row.question}{row.truth}{END}")


def more_tokens_are_trained_than_masked(lab: SmallLab) -> None:
    lines = lines_of(lab.trained, "training.jsonl")
    lines[1]["supervised"] += 40
    write_lines(lab.trained, "training.jsonl", lines)


def a_visual_tensor_is_trained(lab: SmallLab) -> None:
    name = "base_model.model.model.visual.blocks.0.attn.qkv.lora_A.weight"
    for folder, by in (("start", 0.0), ("epoch-1", 0.5), ("epoch-2", 1.0)):
        tensors = {LAYER.format("A"): np.arange(8.0).reshape(2, 4) + by, name: np.ones((2, 4)) + by}
        lab.adapter(folder, tensors)
    lab.select(2)


def the_base_s_vision_moves(lab: SmallLab) -> None:
    lab.account(frozen_after={"visual": "c" * 64, "language": "b" * 64})


def the_base_s_language_moves(lab: SmallLab) -> None:
    lab.account(frozen_after={"visual": "a" * 64, "language": "c" * 64})


def nothing_is_learnt(lab: SmallLab) -> None:
    for name in ("epoch-1", "epoch-2"):
        shutil.copyfile(*(lab.trained.file(f"{one}/adapter_model.safetensors") for one in ("start", name)))
    lab.select(2)


def the_account_of_the_change_is_made_up(lab: SmallLab) -> None:
    value = lab.trained.read_json("weights.json")
    value["tensors"][0]["change_l2"] *= 2
    lab.trained.write_json("weights.json", value)


def the_candidate_is_picked_by_the_test(lab: SmallLab) -> None:
    lab.develop(1, 3)
    lab.develop(2, 2)  # development prefers epoch 1, the run keeps epoch 2


def a_tie_goes_to_the_later(lab: SmallLab) -> None:
    lab.develop(1, 3)
    lab.develop(2, 3)


def tested_pictures_choose_the_epoch(lab: SmallLab) -> None:
    lines = lines_of(lab.trained, "dev-epoch2.jsonl")
    lines[0]["id"] = lab.rows("test-regular")[0].uid
    write_lines(lab.trained, "dev-epoch2.jsonl", lines)


def a_development_reward_is_made_up(lab: SmallLab) -> None:
    lines = lines_of(lab.trained, "dev-epoch1.jsonl")
    lines[-1]["reward"] = 1.0
    write_lines(lab.trained, "dev-epoch1.jsonl", lines)


def the_rule_is_frozen_late(lab: SmallLab) -> None:
    lines = lines_of(lab.trained, "events.jsonl")
    write_lines(lab.trained, "events.jsonl", [{**line, "t": line["t"] - 60} for line in lines])


def another_adapter_becomes_the_final_one(lab: SmallLab) -> None:
    shutil.copyfile(*(lab.trained.file(f"{one}/adapter_model.safetensors") for one in ("epoch-1", "adapter")))


def a_step_without_gradient(lab: SmallLab) -> None:
    lines = lines_of(lab.trained, "training.jsonl")
    lines[1]["grad_norm"] = 0.0
    write_lines(lab.trained, "training.jsonl", lines)


def other_data_than_is_said(lab: SmallLab) -> None:
    for name in ("epoch-2", "adapter"):
        path = lab.trained.file(f"{name}/provenance.json")
        path.write_text(json.dumps({**json.loads(path.read_text()), "data": {"mini": "d" * 64}}))


def another_base(lab: SmallLab) -> None:
    data = bytearray((lab.base / "adapter_model.safetensors").read_bytes())
    data[-1] ^= 1
    (lab.base / "adapter_model.safetensors").write_bytes(data)


TRAINING: list[tuple[Change, str, str]] = [
    (the_prompt_is_taught, "supervision mask", "the mask reaches over the prompt"),
    (the_question_is_taught, "supervision mask", "is taught, not the answer"),
    (more_tokens_are_trained_than_masked, "supervision mask", "epoch 2 trained on"),
    (a_visual_tensor_is_trained, "vision frozen", "visual.blocks.0"),
    (the_base_s_vision_moves, "vision frozen", "visual weights were"),
    (the_base_s_language_moves, "base frozen", "language weights were"),
    (nothing_is_learnt, "weight change", "nothing was learnt"),
    (the_account_of_the_change_is_made_up, "weight change", "weights.json says"),
    (the_candidate_is_picked_by_the_test, "development selection", "chooses epoch 1"),
    (a_tie_goes_to_the_later, "development selection", "chooses epoch 1"),
    (tested_pictures_choose_the_epoch, "development selection", "other images than the frozen rule"),
    (a_development_reward_is_made_up, "development selection", "has reward 1.0"),
    (the_rule_is_frozen_late, "selection rule frozen", "after the first step"),
    (another_adapter_becomes_the_final_one, "final adapter", "but epoch-1"),
    (a_step_without_gradient, "gradients", "step 2: the gradient is zero"),
    (other_data_than_is_said, "training data", "was made from dddddd"),
    (another_base, "base model", "the adapter was trained on"),
]
