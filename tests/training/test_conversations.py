"""Examples of several images, none, several turns and a system prompt: encoded, taught, asked, sampled, trained on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from examples import conversation, imported, scene, several
from refusals import mentions, refused

from vlmconsole.audit.run import audit
from vlmconsole.data.example import Example
from vlmconsole.jobs.contract import Context
from vlmconsole.jobs.kinds import load_kind
from vlmconsole.jobs.launch import create_run
from vlmconsole.jobs.presets import load_preset, overlay
from vlmconsole.models.qwen2_5_vl import END, IMAGE
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.training.bases import base_folder
from vlmconsole.training.curriculum import IGNORED, audit_mask, batch_inputs
from vlmconsole.training.generation import answers, invariance, prompt_of
from vlmconsole.training.model import Loaded, load

KINDS = several("kind", 5)


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    import torch

    torch.set_num_threads(1)
    return load(base_folder(""))


def published(loaded: Loaded, example: Example, *, answered: bool) -> list[int]:
    """The token ids of a conversation as transformers renders it by the model's template, each image written out."""

    left = [picture.image() for picture in example.pictures()]
    images, messages = list(left), []
    for turn in example.turns if answered else example.asked:
        parts: list[dict[str, Any]] = []
        for at, text in enumerate(turn.text.split("<image>")):
            parts += [{"type": "image"}] if at else []
            parts += [{"type": "text", "text": text}] if text else []
        messages.append({"role": turn.role, "content": parts if turn.role == "user" else turn.text})
    template = (base_folder("") / "chat_template.jinja").read_text("utf-8")
    text = loaded.tokenizer.apply_chat_template(
        messages, chat_template=template, tokenize=False, add_generation_prompt=not answered
    )
    for image in images:
        grid = loaded.images(images=[image], return_tensors="pt")["image_grid_thw"][0]
        text = text.replace(IMAGE, "<|placeholder|>" * (int(grid.prod()) // loaded.images.merge_size**2), 1)
    ids: list[int] = loaded.tokenizer(text.replace("<|placeholder|>", IMAGE), add_special_tokens=False)["input_ids"]
    return ids


@pytest.mark.parametrize("example", KINDS, ids=lambda example: example.id)
def test_it_is_encoded_as_the_models_own_template_writes_it(loaded: Loaded, example: Example) -> None:
    inputs = batch_inputs(loaded, [example])
    assert inputs["input_ids"][0].tolist() == published(loaded, example, answered=True)
    (asked,) = answers(loaded, [prompt_of(example)], max_new_tokens=2)
    assert asked.prompt_tokens == len(published(loaded, example, answered=False))
    assert ("pixel_values" in inputs) == bool(example.images)


def test_each_answer_is_taught_and_nothing_else(loaded: Loaded) -> None:
    masks = list(audit_mask(loaded, KINDS, lambda: False))
    assert [mask.wrong for mask in masks] == [""] * 5
    assert [mask.supervised for mask in masks] == [
        *(f"{answer}{END}" for answer in ("circle", "circle", "red")),
        f"circle{END}square{END}",
        f"square{END}",
    ]
    assert [len(mask.images) for mask in masks] == [1, 2, 0, 2, 1]
    turns = masks[3].to_json()
    assert len(turns["spans"]) == 2 and turns["supervised_from"] == turns["spans"][0][0]
    assert "spans" not in masks[0].to_json() and "visual_each" not in masks[0].to_json()
    labels = batch_inputs(loaded, KINDS)["labels"]
    assert int((labels != IGNORED).sum()) == sum(mask.count for mask in masks)


def test_a_batch_of_all_kinds_gives_the_answers_of_each_alone(loaded: Loaded) -> None:
    assert invariance(loaded, [prompt_of(example) for example in KINDS], max_new_tokens=6, batch=5).invariant


def test_where_an_image_stands_in_the_text_decides_the_prompt(loaded: Loaded) -> None:
    image = scene("place")
    first = conversation(("user", "<image>Which shape is red?"), ("assistant", "circle"), images=[image])
    last = conversation(("user", "Which shape is red?<image>"), ("assistant", "circle"), images=[image])
    ids = [batch_inputs(loaded, [example])["input_ids"][0].tolist() for example in (first, last)]
    assert ids[0] != ids[1] and sorted(ids[0]) == sorted(ids[1])


def test_an_example_without_an_answer_is_not_taught(loaded: Loaded) -> None:
    with refused("answer-missing", "asked"):
        batch_inputs(loaded, [conversation(("user", "Hello?"), id="asked")])


def test_sampled_prompts_without_images_have_the_probabilities_of_a_plain_forward_pass(loaded: Loaded) -> None:
    import torch

    from vlmconsole.training import rollout
    from vlmconsole.training.model import encode

    asks = [prompt_of(KINDS[2])]
    prompts = rollout.look(loaded, asks)
    made = rollout.sample(loaded, prompts, n=2, generator=torch.Generator().manual_seed(1), max_new_tokens=5)
    logs, _ = rollout.log_probabilities(loaded, prompts, made)
    inputs = encode(loaded, [ask.chat for ask in asks], left=True)
    loaded.model.model.rope_deltas = None
    with torch.no_grad():
        ids = torch.cat([inputs["input_ids"].repeat_interleave(2, 0), made.ids], 1)
        mask = torch.cat([inputs["attention_mask"].repeat_interleave(2, 0), made.mask], 1)
        scores = loaded.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    scores = scores[:, -made.ids.shape[1] - 1 : -1]
    scores[..., rollout.barred_ids(loaded)] = float("-inf")
    plain = torch.log_softmax(scores.float(), -1).gather(-1, made.ids[..., None])[..., 0]
    whole = made.mask.bool()
    assert torch.allclose(logs[whole], plain[whole], atol=1e-4)


def test_grpo_steps_over_all_kinds(loaded: Loaded) -> None:
    from vlmconsole.training.grpo_train import GrpoTraining, Trainer

    settings = GrpoTraining(questions=5, answers=2, max_new_tokens=6, rate=1e-5, scorer="", micro=2)
    step = Trainer(load(base_folder("")), KINDS, settings).take()
    assert [rollout.example.id for rollout in step.rollouts[::2]] == [example.id for example in KINDS]
    assert all(rollout.scored.valid in (True, False) and rollout.tokens for rollout in step.rollouts)


def job(places: Places, preset: str, **changes: Any) -> tuple[RunFolder, dict[str, Any]]:
    """A run of a preset, worked here, and its summary."""
    found = load_preset(preset)
    run = create_run(places, found, overlay(found, [f"{key}={json.dumps(value)}" for key, value in changes.items()]))
    kind = load_kind(str(run.job()["kind"]))
    summary = kind.run(Context(run, places), kind.spec.model_validate(run.job()["spec"]))
    run.write_json("summary.json", summary)
    run.set_state("done")
    return run, summary


def wrong(run: RunFolder, places: Places) -> dict[str, str]:
    """What an audit finds wrong, by the check's name."""
    return {finding.name: finding.text for finding in audit(run, places).findings if finding.state == "wrong"}


def change_line(run: RunFolder, file: str, at: int, **fields: Any) -> None:
    lines = list(run.read_jsonl(file))
    lines[at] |= fields
    run.file(file).write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


@pytest.mark.timeout(300)
def test_an_imported_dataset_is_evaluated_and_trained_on(tmp_path: Path) -> None:
    places = Places(tmp_path).ensure()
    splits = {name: (name, several(name, 5)) for name in ("train", "dev", "test")}
    imported(places.datasets, "mixed", splits)
    run, summary = job(places, "eval-groups-tiny", data=["mixed"], batch=4, max_new_tokens=8)
    assert not wrong(run, places)
    lines = list(run.read_jsonl("before.jsonl"))
    assert [line["id"] for line in lines] == [*(f"test-{i}" for i in (0, 1, 2, 3)), "test-3#2", "test-4"]
    assert {line["scorer"] for line in lines} == {"naming/1"} and summary["groups"]["test"]["before"]["answered"] == 6
    assert lines[1]["prompt"].count("<image>") == 2 and lines[0]["prompt"] == "What shape is red?"
    assert [line["truth"] for line in lines] == ["circle", "circle", "red", "circle", "square", "square"]
    change_line(run, "before.jsonl", 1, truth="square")
    change_line(run, "before.jsonl", 2, all_correct=not lines[2]["all_correct"])
    change_line(run, "before.jsonl", 4, prompt_sha=lines[0]["prompt_sha"])
    found = wrong(run, places)
    assert set(found) == {"samples", "scores"} and mentions(found["samples"], "test-1", "test-3#2")
    leaked = replace(splits["test"][1][1], id="leaked", split="train")
    imported(places.datasets, "later", {"train": ("train", [leaked])})
    assert mentions(wrong(run, places)["isolation: tested images"], "test-1", "leaked")
    run, summary = job(places, "sft-expand-tiny", data="mixed", epochs=1, dev_epochs=[1], batch=3)
    assert summary["steps"] == 2 and summary["dev_n"] == 6 and not wrong(run, places)
    masks = next(finding for finding in audit(run, places).findings if finding.name == "supervision mask")
    assert mentions(masks.text, "tokenized anew")
    mask = run.read_json("mask.json")
    assert mask["rows"] == 5 and mask["wrong"] == 0
    samples = list(run.read_jsonl("dev-epoch1.jsonl"))
    assert [sample["id"] for sample in samples] == [*(f"dev-{i}" for i in (0, 1, 2, 3)), "dev-3#2", "dev-4"]


@pytest.mark.parametrize("scorer", ["number", "", "none"])
def test_a_question_that_cannot_be_scored_is_named_before_anything_is_asked(tmp_path: Path, scorer: str) -> None:
    """The first of two questions has a word for its answer, and the example's scorer reads numbers."""
    places = Places(tmp_path).ensure()
    turns = [("user", "What is red?"), ("assistant", "a circle"), ("user", "How many?"), ("assistant", "3")]
    example = conversation(*turns, id="twice", scorer=scorer, truth="3")
    imported(places.datasets, "numbers", {name: (name, [example]) for name in ("train", "dev", "test")})
    for preset, data in (("eval-groups-tiny", ["numbers"]), ("sft-expand-tiny", "numbers")):
        unknown = scorer == "none" and preset == "sft-expand-tiny"  # told by the check of the dataset itself
        with refused("dataset-unfit" if unknown else "truth-unfit", "twice"):
            job(places, preset, data=data)
        found = load_preset(preset)
        kind = load_kind(found.kind)
        spec = overlay(found, [f"data={json.dumps(data)}"])
        assert any(mentions(reason, "numbers", "twice") for reason in kind.problems(spec, places, True))


def test_a_video_tag_in_a_text_is_refused_for_verl(tmp_path: Path) -> None:
    places = Places(tmp_path).ensure()
    example = conversation(("user", "What does <video> mean?"), ("assistant", "film"), id="tagged")
    imported(places.datasets, "tags", {"train": ("train", [example]), "dev": ("dev", [example])})
    found = load_preset("grpo-3-tiny")
    sets = ["data=tags", "validation_split=dev"]
    reasons = {
        engine: load_kind("grpo").problems(overlay(found, [*sets, f"engine={engine}"]), places, True)
        for engine in ("verl", "in-process")
    }
    assert mentions(" ".join(reasons["verl"]), "tagged", "<video>") and reasons["in-process"] == []
