"""Settings that a preset leaves to the data: proposed from it, said in the plan, and never over a given one."""

from __future__ import annotations

import pytest

from vlmconsole.cli import main
from vlmconsole.data.bundled_tasks import find_task
from vlmconsole.desks import forms
from vlmconsole.errors import LabError
from vlmconsole.jobs.presets import load_preset
from vlmconsole.jobs.sft_settings import SftSpec
from vlmconsole.queue.adding import Planned, plan
from vlmconsole.runs.places import Places


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    home = tmp_path_factory.mktemp("lab")
    for words in (
        ["data", "example", "colours", str(home / "colours")],
        [*find_task("colours").import_command(home / "colours")[1:], "--yes"],
    ):
        with pytest.raises(SystemExit, match="0"):
            main([*words, "--home", str(home), "--quiet"])
    return Places(home)


def planned(places: Places, preset: str, *sets: str) -> Planned:
    (one,) = plan(load_preset(preset, places), sets, places)
    return one


def test_sft_settings_follow_from_the_data_and_are_said(places: Places) -> None:
    job = planned(places, "sft", "data=colours")
    spec = job.job.spec
    assert (spec["epochs"], spec["dev_epochs"], spec["max_new_tokens"]) == (8, [2, 4, 6, 8], 16)
    assert spec["lr"] == 2e-3 and spec["score_start"] is True and spec["warm_up"] == 28
    assert len(job.proposed) == 6 and any("144" in line and "288 steps" in line for line in job.proposed)
    assert job.to_json()["proposed"] == list(job.proposed)
    assert job.estimate is not None and job.estimate.seconds is not None and not job.problems


def test_what_is_given_stays_and_the_rest_follows_it(places: Places) -> None:
    job = planned(places, "sft", "data=colours", "epochs=3", "lr=1e-4")
    assert (job.job.spec["epochs"], job.job.spec["dev_epochs"], job.job.spec["lr"]) == (3, [1, 2, 3], 1e-4)
    assert not any(line.startswith(("epochs", "lr")) for line in job.proposed)


def test_grpo_takes_the_splits_by_their_role(places: Places) -> None:
    spec = planned(places, "grpo", "data=colours").job.spec
    assert (spec["train_split"], spec["validation_split"], spec["steps"]) == ("train", "dev", 36)
    assert (spec["validation"], spec["validate_every"], spec["answers"]) == (32, 12, 8)


def test_without_data_the_plan_says_what_to_name(places: Places) -> None:
    with pytest.raises(LabError, match="data=NAME"):
        planned(places, "sft")


def test_other_presets_are_not_touched_and_old_settings_read_the_same(places: Places) -> None:
    assert not load_preset("sft-expand-tiny", places).proposed
    assert "score_start" not in SftSpec().model_dump(mode="json")
    assert SftSpec(score_start=True).model_dump(mode="json")["score_start"] is True


def test_the_form_leaves_proposed_fields_blank_and_checks_with_them(places: Places) -> None:
    (group,) = forms.form("sft", places)
    fields = {field.key: field for field in group.fields}
    assert fields["epochs"].proposed and fields["epochs"].value == "" and not fields["rank"].proposed
    assert forms.problems("sft", ["data=colours", "epochs=1"], places) == {}
