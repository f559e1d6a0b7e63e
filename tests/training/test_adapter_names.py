"""Names of adapters after a second run: the newest finished one, an epoch of it, `last`; old runs keep theirs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from refusals import refused

from vlmconsole.gates.trained import evaluated_adapter, training_of
from vlmconsole.models.weights import to_bytes
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.training.adapters.config import SeveralAdaptersError
from vlmconsole.training.adapters.store import AdapterError, exact_adapter, find_adapter


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A folder that is found as an adapter: what is in it is looked at when it is used."""
    folder = tmp_path / "taught"
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (folder / "adapter_model.safetensors").write_bytes(to_bytes({}))
    return folder


class Runs:
    def __init__(self, places: Places, made: Path) -> None:
        self.places, self.made, self.hour = places, made, 10

    def train(self, preset: str, state: str, *inner: str) -> RunFolder:
        self.hour += 1
        name = f"20261130-{self.hour}0000-{preset}-ab{self.hour}"
        spec: dict[str, object] = {}
        run = RunFolder.create(
            self.places.runs, kind="sft", preset=preset, spec=spec, title="t", home=self.places.home, name=name
        )
        run.set_state(state)
        for folder in inner:
            shutil.copytree(self.made, run.file(folder))
        return run

    def find(self, name: str) -> Path:
        return find_adapter(self.places, name).path


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Runs:
    return Runs(Places(tmp_path / "home").ensure(), made)


WHOLE = ("adapter", "epoch-2", "epoch-4")


def test_a_presets_name_means_its_newest_finished_run(runs: Runs) -> None:
    runs.train("sft-tiny", "done", *WHOLE)
    second = runs.train("sft-tiny", "done", *WHOLE)
    runs.train("sft-tiny", "lost", *WHOLE)
    runs.train("sft-tiny", "failed", "epoch-2")
    running = runs.train("sft-tiny", "running", "epoch-2")
    other = runs.train("sft-tiny-more", "done", *WHOLE)
    assert runs.find("sft-tiny") == second.file("adapter")
    assert runs.find("sft-tiny:epoch-4") == second.file("epoch-4")
    assert runs.find("last") == other.file("adapter") and runs.find("last:epoch-2") == other.file("epoch-2")
    assert runs.find(f"{running.name}:epoch-2") == running.file("epoch-2")
    assert runs.find(f"{running.name}/epoch-2") == running.file("epoch-2")
    assert runs.find(second.name) == second.file("adapter")
    assert runs.find("sft-tiny-more") == other.file("adapter")


def test_a_part_of_a_name_is_clear_within_one_preset_and_refused_across(runs: Runs) -> None:
    runs.train("sft-tiny", "done", *WHOLE)
    second = runs.train("sft-tiny", "done", *WHOLE)
    assert runs.find("t-tin") == second.file("adapter")
    runs.train("other-tiny", "done", *WHOLE)
    with pytest.raises(SeveralAdaptersError, match="fits"):
        runs.find("-tiny-")
    assert runs.find("other") == runs.places.runs / runs.find("other").parent.name / "adapter"


def test_where_no_run_is_finished_the_error_says_how_they_stand(runs: Runs) -> None:
    lost = runs.train("sft-tiny", "lost", *WHOLE)
    assert runs.find("sft-tiny") == lost.file("adapter"), "the only one there is"
    runs.train("sft-tiny", "failed", *WHOLE)
    with refused("adapter-ambiguous", "failed", "lost", error=SeveralAdaptersError):
        runs.find("sft-tiny")
    with refused("run-unfinished", "last"):
        runs.find("last")
    with refused("adapter-missing", "epoch-9", error=AdapterError):
        runs.find("sft-tiny:epoch-9")


def test_an_adapter_of_ones_own_comes_first(runs: Runs, made: Path) -> None:
    runs.train("sft-tiny", "done", *WHOLE)
    shutil.copytree(made, runs.places.adapters / "sft-tiny")
    assert runs.find("sft-tiny") == runs.places.adapters / "sft-tiny"


def test_a_folder_here_does_not_hide_the_labs_name(runs: Runs, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = runs.train("sft-tiny", "done", *WHOLE)
    here = made.parent / "here"
    for name in ("sft-tiny", first.name, "other", "last"):
        shutil.copytree(made, here / name)
    monkeypatch.chdir(here)
    for name in ("sft-tiny", first.name, "last"):
        assert runs.find(name) == first.file("adapter")
        assert runs.find(f"./{name}") == here / name
    assert runs.find("other") == here / "other"


@pytest.mark.parametrize("name", ["..", "../adapters", "/", "", ".hidden", "a/../b", "run/epoch-2/..", "nowhere"])
def test_an_exact_name_never_leaves_the_lab(runs: Runs, name: str) -> None:
    assert exact_adapter(runs.places, name) is None


def test_an_old_evaluation_keeps_the_adapter_that_answered(runs: Runs) -> None:
    first = runs.train("sft-tiny", "done", *WHOLE)
    (first.path / "training.jsonl").write_text("{}\n")
    spec = {"after_adapter": "sft-tiny"}
    evaluation = RunFolder.create(
        runs.places.runs, kind="evaluate", preset="e", spec=spec, title="t", home=runs.places.home
    )
    assert evaluated_adapter(evaluation, "after", runs.places) == first.file("adapter")
    identity = f"{first.name}/adapter sha256:{'0' * 64}"
    evaluation.write_json("conditions.json", {"before": {}, "after": {"adapter": identity}})
    second = runs.train("sft-tiny", "done", *WHOLE)
    (second.path / "training.jsonl").write_text("{}\n")
    assert runs.find("sft-tiny") == second.file("adapter")
    assert evaluated_adapter(evaluation, "after", runs.places) == first.file("adapter")
    trained = training_of(evaluation, runs.places)
    assert trained is not None and trained.name == first.name
    assert evaluated_adapter(evaluation, "before", runs.places) is None


def test_a_name_that_several_have_is_refused_before_any_answer(runs: Runs) -> None:
    from vlmconsole.evaluation.settings import EvaluateSettings
    from vlmconsole.jobs import evaluate

    for preset in ("one-tiny", "two-tiny"):
        runs.train(preset, "done", *WHOLE)
    for more in ({}, {"backend": "server", "server": "demo"}, {"backend": "server", "server": "sglang-remote"}):
        spec = EvaluateSettings.model_validate({"data": ["sft-expand-tiny"], "after_adapter": "-tiny", **more})
        assert any("fits" in text for text in evaluate.problems(spec, runs.places, True)), more
        fits = EvaluateSettings.model_validate({"data": ["sft-expand-tiny"], "after_adapter": "one-tiny", **more})
        # The name is clear; that the stand-in's weights are none is another matter.
        assert not any("fits" in text or "no adapter" in text for text in evaluate.problems(fits, runs.places, True))
    unknown = EvaluateSettings.model_validate(
        {"data": ["sft-expand-tiny"], "after_adapter": "nowhere", "backend": "server", "server": "demo"}
    )
    assert any("nowhere" in text for text in evaluate.problems(unknown, runs.places, True))


def test_a_datasets_name_means_the_newest_finished_training_on_it(runs: Runs) -> None:
    def on(data: str, state: str = "done") -> RunFolder:
        run = runs.train("sft", state, *WHOLE)
        run.write_json("job.json", {**run.job(), "spec": {"data": data}})
        return run

    on("shops")
    shops, meters = on("shops"), on("meters")
    on("shops", "lost")
    assert runs.find("shops") == shops.file("adapter") and runs.find("shops:epoch-2") == shops.file("epoch-2")
    assert runs.find("sft") == meters.file("adapter")
