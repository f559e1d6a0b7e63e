"""The model job's training: the same weights from the same seed, stopped and taken up or not."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from vlmconsole.counting.layout import PITCH, PLACES
from vlmconsole.counting.questions import CLEARLY, COUNT_PROMPT, SIZES, lone_scene, lone_set, question_set
from vlmconsole.counting.scene import KINDS, check, make_scene
from vlmconsole.toy import tiny
from vlmconsole.toy.bundle import begin
from vlmconsole.toy.lessons import (
    BOUNDS,
    STAGES,
    LessonRecipe,
    eyes_scene,
    lesson,
    phase_steps,
    question_lesson,
    small_scene,
    token_names,
    token_sizes,
)
from vlmconsole.toy.pretrain import LossPoint, plain_patches, pretrain
from vlmconsole.training.lora import inject
from vlmconsole.training.model import encode, features, load
from vlmconsole.training.prompts import Turn

LAST = {
    "question_steps": 2,
    "question_batch": 3,
    "question_counts": 1,
    "question_turns": 2,
    "question_refresh": 2,
}
NAMELESS = ("it?", "this?", "the object?", "the thing?", "the shape?")
SHORT = LessonRecipe(seed=3, threads=1, batch=3, eyes_steps=3, language_steps=3, count_share=1, warm_up=2, **LAST)


def train(folder: Path, recipe: LessonRecipe, stop_after: int | None = None) -> tuple[Any, list[LossPoint]]:
    """Trains in `folder`, taking up its checkpoint; stops after so many steps if asked to."""
    points: list[LossPoint] = []
    loaded = begin(folder / "model", recipe)
    head = pretrain(
        loaded,
        recipe,
        checkpoint=folder / "checkpoint.pt",
        report=points.append,
        stopping=lambda: stop_after is not None and len(points) >= stop_after,
        every=2,
        report_every=1,
    )
    assert (head is None) == (stop_after is not None)
    return loaded.model.state_dict(), points


@pytest.mark.slow
def test_stopped_or_killed_runs_end_in_the_same_weights(tmp_path: Path) -> None:
    whole, points = train(tmp_path / "whole", SHORT)
    phases = phase_steps(SHORT)
    assert [p.phase for p in points] == [name for name, steps in phases.items() for _ in range(steps)]
    assert list(phases) == ["eyes", "language", "questions", "sharpen", "names", "all"]
    assert all(p.loss > 0 and p.seconds_per_step > 0 for p in points)

    parts = tmp_path / "parts"
    train(parts, SHORT, stop_after=1)  # in the eyes phase
    train(parts, SHORT, stop_after=3)  # in the language phase
    # As after a kill: a torn checkpoint lies beside the good one.
    (parts / "checkpoint.part").write_bytes(b"torn")
    again, rest = train(parts, SHORT)
    assert len(rest) < len(points)
    assert all(torch.equal(whole[name], again[name]) for name in whole)

    other, _ = train(tmp_path / "other", LessonRecipe(**{**vars(SHORT), "seed": 4}))
    assert not torch.equal(
        whole["model.language_model.embed_tokens.weight"], other["model.language_model.embed_tokens.weight"]
    )
    with pytest.raises(ValueError, match="another recipe"):
        train(parts, LessonRecipe(**{**vars(SHORT), "eyes_steps": 4}))


def test_eyes_are_told_the_truth() -> None:
    for seed in range(20):
        scene = (eyes_scene, small_scene, lone_scene)[seed % 3](str(seed))
        assert check(scene) == []
        names = token_names(scene)
        assert len(names) == PLACES**2 and sum(n > 0 for n in names) == len(scene.things)
        thing = scene.things[0]
        place = thing.y // PITCH * PLACES + thing.x // PITCH
        assert KINDS[names[place] - 1] == (thing.colour, thing.shape)
        sizes = token_sizes(scene)
        low, high = (0, *BOUNDS)[sizes[place] - 1], (*BOUNDS, 1000)[sizes[place] - 1]
        assert low < thing.radius <= high
        assert [size > 0 for size in sizes] == [name > 0 for name in names]


def test_one_thing_of_any_size_is_asked_about_truly() -> None:
    asked = [lone_set(str(seed)) for seed in range(200)]
    radii = [thing.radius for one in asked if one.scene and len(one.scene.things) == 1 for thing in one.scene.things]
    assert min(radii) < 20 and max(radii) > 90
    for one in asked:
        assert one.scene is not None and check(one.scene) == [] and len(one.scene.things) <= 2
        for question, answer in one.pairs:
            said = question.split()
            if said[1] in ("colour", "color", "shape") and " ".join(said[3:]) in NAMELESS:
                (thing,) = one.scene.things
                assert answer == (thing.shape if said[1] == "shape" else thing.colour)


def test_sizes_are_asked_only_where_they_are_clear() -> None:
    for seed in range(60):
        for kind in ("extreme", "larger", "size"):
            asked = question_set(f"clear:{seed}", 1, kind)
            (question, answer), things = asked.pairs[0], asked.scene.things if asked.scene else ()
            if kind == "size":
                (thing,) = (t for t in things if t.name in question)
                low, high = SIZES[answer]
                assert low <= thing.radius <= high
                continue
            rivals = [t for t in things if kind == "extreme" or t.name in question]
            best = (min if "small" in question else max)(rivals, key=lambda t: t.radius)
            assert answer == f"the {best.name}"
            others = [t.radius for t in rivals if t is not best]
            ratios = [best.radius / r if "small" not in question else r / best.radius for r in others]
            assert min(ratios) >= CLEARLY


def test_the_first_layer_as_one_product_gives_the_same_features(tmp_path: Path) -> None:
    loaded = begin(tmp_path, SHORT)
    pictures = [eyes_scene("a").draw(), eyes_scene("b").draw()]
    before = features(loaded, pictures).clone()
    plain_patches(loaded.model.model.visual)
    assert torch.allclose(features(loaded, pictures), before, atol=1e-5)


@pytest.mark.slow
def test_stages_that_leave_the_eyes_alone_do(tmp_path: Path) -> None:
    eyes: dict[str, dict[str, Any]] = {}
    loaded = begin(tmp_path / "model", SHORT)

    def look(point: LossPoint) -> None:
        eyes[point.phase] = {k: v.clone() for k, v in loaded.model.state_dict().items() if "visual" in k}

    pretrain(loaded, SHORT, checkpoint=tmp_path / "c.pt", report=look, stopping=lambda: False, report_every=1)
    order = list(eyes)
    moved = [
        name
        for last, name in pairwise(order)
        if not all(torch.equal(value, eyes[last][part]) for part, value in eyes[name].items())
    ]
    assert moved == ["language", "questions", "sharpen"]


def test_lessons_never_count_past_the_limit() -> None:
    recipe = LessonRecipe()
    lessons = [lesson(recipe, step, index) for step in range(3) for index in range(recipe.batch)]
    counted = [json.loads(one.chat[0].answer or "") for one in lessons if one.chat[0].text == COUNT_PROMPT]
    assert len(counted) == 3 * recipe.count_share
    assert max(max(answer.values()) for answer in counted) <= recipe.most_counted
    later = [question_lesson(recipe, STAGES[0], 0, index) for index in range(recipe.question_batch)]
    assert sum(one.chat[0].text == COUNT_PROMPT for one in later) == recipe.question_counts
    assert max(len(one.chat) for one in later) > 5
    assert any(one.scene is None for one in lessons) and any(len(one.chat) > 1 for one in lessons)


def test_inputs_teach_the_answer_only(tmp_path: Path) -> None:
    loaded = begin(tmp_path, SHORT)
    picture = make_scene(1).draw()
    chats = [[Turn("Hello", "Hi"), Turn("How many?", "12")], [Turn(COUNT_PROMPT, "yes", (picture,))]]
    inputs = encode(loaded, chats)
    for row, taught in zip(inputs["labels"], (["Hi", "12"], ["yes"]), strict=True):
        said = loaded.tokenizer.decode(row[row != -100])
        assert said == "".join(f"{answer}<|im_end|>" for answer in taught)
    assert int(inputs["mm_token_type_ids"].sum()) == 64
    assert inputs["image_grid_thw"].tolist() == [[1, 16, 16]]

    # The template that servers apply gives the very same tokens.
    shown = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": COUNT_PROMPT}]}],
        tokenize=False,
        add_generation_prompt=True,
    )
    shown = shown.replace("<|image_pad|>", "<|image_pad|>" * 64)
    alone = encode(loaded, [[Turn(COUNT_PROMPT, None, (picture,))]])
    assert loaded.tokenizer(shown)["input_ids"] == alone["input_ids"][0].tolist()


def test_tokenizer_says_anything_and_digits_alone(tmp_path: Path) -> None:
    tiny.write_frame(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    for text in ("12 red circles", "Grüße, 世界 🙂", 'a  b\n\tc {"x": 10}', COUNT_PROMPT):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.tokenize("12")[-2:] == ["1", "2"]
    again = tmp_path / "again"
    tiny.write_frame(again)
    assert (again / "tokenizer.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()


def test_lora_leaves_the_eyes_alone(tmp_path: Path) -> None:
    begin(tmp_path, SHORT)
    adapted = inject(load(tmp_path).model)
    taught = [name for name, p in adapted.named_parameters() if p.requires_grad]
    assert len(taught) == 4 * 7 * 2 and not any("visual" in name for name in taught)
