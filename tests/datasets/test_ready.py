"""Datasets by name, by path and by recipe: the same way for making, training and evaluating; makers one at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from refusals import mentions, refused
from sft_runs import RECIPE

from vlmconsole.data.maker_lock import alone
from vlmconsole.data.names import Promised, promised, ready
from vlmconsole.data.recipe import RecipeError
from vlmconsole.data.rows import DataError
from vlmconsole.data.splits import PictureIndex
from vlmconsole.evaluation.items import choose
from vlmconsole.evaluation.settings import EvaluateSettings
from vlmconsole.jobs import data
from vlmconsole.jobs.contract import Context, Stopped
from vlmconsole.jobs.presets import load_preset, overlay
from vlmconsole.jobs.sft_settings import SftSpec
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places


@pytest.fixture
def places(tmp_path: Path) -> Places:
    made = Places(tmp_path / "home").ensure()
    (tmp_path / "few.toml").write_text(RECIPE)
    return made


def context_of(places: Places) -> Context:
    run = RunFolder.create(places.runs, kind="sft", preset="p", spec={}, title="t", home=places.home)
    return Context(run, places)


@pytest.mark.parametrize("way", ["name", "folder", "recipe"])
def test_training_and_evaluation_take_a_users_dataset_by_each_of_its_names(
    places: Places, tmp_path: Path, way: str
) -> None:
    recipe = tmp_path / "few.toml"
    folder = ready(str(recipe), places.datasets)
    named = {"name": "few", "folder": str(folder), "recipe": str(recipe)}[way]

    trained = overlay(load_preset("sft-expand-tiny"), [f"data={named}"])
    assert isinstance(trained, SftSpec)
    context = context_of(places)
    found = data.ready(context, trained.data)
    assert found == folder and len(data.split_examples(found, data.examined(context, found), "train")) == 10

    asked = EvaluateSettings(data=[named], after_adapter="some")
    assert [item.dataset for item in choose(asked, [ready(one, places.datasets) for one in asked.data], None)] == [
        "few"
    ] * 2


def test_what_is_promised_and_what_is_made_have_the_same_splits(places: Places, tmp_path: Path) -> None:
    before = promised(str(tmp_path / "few.toml"), places.datasets)
    assert before == {
        "train": Promised("train", 10),
        "dev": Promised("dev", 4),
        "test-regular": Promised("test", 2),
    }
    ready(str(tmp_path / "few.toml"), places.datasets)
    assert promised("few", places.datasets) == before


def test_what_nothing_is_called_is_refused_with_the_nearest_name(places: Places, tmp_path: Path) -> None:
    ready(str(tmp_path / "few.toml"), places.datasets)
    with refused("dataset-missing", "fewe", "few", error=DataError):
        ready("fewe", places.datasets)
    with pytest.raises(RecipeError, match="cannot be read"):
        ready("gone.toml", places.datasets)
    (tmp_path / "mine.jsonl").write_text("{}\n")
    with refused("dataset-missing", "mine.jsonl", "file", error=DataError):
        ready(str(tmp_path / "mine.jsonl"), places.datasets)


def test_a_shipped_name_with_other_pictures_is_taken_as_it_is_and_said(places: Places, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(RECIPE.replace('"few"', '"naming"'))
    folder, told = ready(str(other), places.datasets), []
    assert ready("naming", places.datasets, say=told.append) == folder
    assert len(told) == 1 and mentions(told[0], "naming", "recipe")


def test_several_makers_at_once_make_it_once(places: Places, tmp_path: Path) -> None:
    told: list[str] = []
    with ThreadPoolExecutor(3) as pool:
        makers = [pool.submit(ready, str(tmp_path / "few.toml"), places.datasets, say=told.append) for _ in range(3)]
    assert {maker.result() for maker in makers} == {places.datasets / "few"}
    assert len(list(PictureIndex(places.datasets).all())) == 16
    assert sum(mentions(text, "another job", "dataset") for text in told) == 2
    assert not list(places.datasets.glob(".*.tmp"))


def test_a_maker_that_waits_says_so_once_and_can_be_stopped(places: Places, tmp_path: Path) -> None:
    context = context_of(places)
    turns = 0

    def stopping() -> bool:
        nonlocal turns
        turns += 1
        return turns > 2

    context.stopping = stopping  # type: ignore[method-assign]
    with alone(places.datasets), pytest.raises(Stopped):
        data.ready(context, str(tmp_path / "few.toml"))
    told = [event["text"] for event in context.run.read_jsonl("events.jsonl")]
    assert len(told) == 2 and mentions(told[0], "few") and mentions(told[1], "another job", "dataset")
    assert not (places.datasets / "few").exists()
