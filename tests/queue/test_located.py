"""What a relative path means that was typed where a job was queued, and where a kind of one's own is found again."""

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field
from supervised import Lab, lab_fixture, places_fixture  # noqa: F401

from vlmconsole.jobs.contract import Spec
from vlmconsole.jobs.kinds import TRUSTED_VARIABLE, place_of
from vlmconsole.jobs.presets import Preset, load_preset
from vlmconsole.queue import adding
from vlmconsole.queue.submitted_paths import located
from vlmconsole.runs.places import Places
from vlmconsole.system.typed_paths import PathOrName


class Settings(Spec):
    plan: PathOrName = ""
    data: list[PathOrName] = Field([])
    table: dict[str, PathOrName | None] = Field({})
    folder: Path | None = None
    words: str = ""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    (folder / "sub").mkdir(parents=True)
    for name in ("mine.toml", "sub/other.toml", "bare", "grpo-tiny", "made"):
        (folder / name).write_text("")
    monkeypatch.chdir(folder)
    return folder


def test_relative_paths_become_absolute_by_the_fields_type_and_names_stay(here: Path, tmp_path: Path) -> None:
    places = Places(tmp_path / "home").ensure()
    (places.datasets / "made").mkdir()

    def of(**spec: Any) -> dict[str, Any]:
        return located(Settings, spec, (here, here / "sub"), places)

    assert of(plan="mine.toml") == {"plan": f"{here}/mine.toml"}
    assert of(plan="sub/other.toml") == of(plan="./sub/other.toml") == {"plan": f"{here}/sub/other.toml"}
    assert of(plan="other.toml") == {"plan": f"{here}/sub/other.toml"}  # beside the preset's own file
    assert of(data=["mine.toml", "bare", "unknown"]) == {"data": [f"{here}/mine.toml", f"{here}/bare", "unknown"]}
    assert of(data=["grpo-tiny", "made", "asset:x", "org/model", ""])["data"] == [
        "grpo-tiny",
        "made",
        "asset:x",
        "org/model",
        "",
    ]
    assert of(plan="./none.toml") == {"plan": f"{here}/none.toml"}  # said to be missing by its whole path
    assert of(plan="~/x") == {"plan": str(Path("~/x").expanduser())} and of(plan="/a/b") == {"plan": "/a/b"}
    assert of(table={"a": "mine.toml", "b": None}) == {"table": {"a": f"{here}/mine.toml", "b": None}}
    assert of(folder="sub", words="mine.toml") == {"folder": f"{here}/sub", "words": "mine.toml"}
    odd = ["${make.folder}", "x" * 5000, "a\0b", 7, None]
    assert of(data=odd)["data"] == odd


def test_a_plan_of_a_relative_path_reaches_the_worker_as_it_was_meant(here: Path, tmp_path: Path) -> None:
    places = Places(tmp_path / "home").ensure()
    text = (Path(adding.__file__).parents[2] / "presets/gates/grpo-5-tiny.toml").read_text()
    (here / "sub/plan.toml").write_text(text)
    sets = ["plan=sub/plan.toml", "data=['grpo-tiny', 'naming']"]
    (one,) = adding.plan(load_preset("freeze-gates"), sets, places)
    assert one.job.spec["plan"] == f"{here}/sub/plan.toml" and one.job.spec["data"] == ["grpo-tiny", "naming"]
    os.chdir(tmp_path)
    steps = [{"name": "first", "preset": "freeze-gates", "set": {"data": ["grpo-tiny", "naming"]}}]
    flow = adding.plan(Preset("f", "flow", "F", {"steps": steps}), ["first.plan=here/sub/plan.toml"], places)
    assert flow[1].job.spec["plan"] == f"{here}/sub/plan.toml"


OWN = """
from vlmconsole.jobs.contract import JobKind, Spec
KIND = JobKind("own", "Own", Spec, lambda context, spec: {"found": __file__})
"""


@pytest.mark.parametrize("module", ["own_kind_7f", pytest.param("own_package_7f", marks=pytest.mark.slow)])
def test_a_kind_on_the_callers_pythonpath_is_found_by_the_worker(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    """The queue's process and its workers were begun in another environment."""
    folder = tmp_path / "own"
    file = folder / f"{module}.py" if "kind" in module else folder / module / "__init__.py"
    file.parent.mkdir(parents=True)
    file.write_text(OWN)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv(TRUSTED_VARIABLE, module)
    assert (
        place_of(f"{module}:KIND") == str(folder) and place_of("bench") == place_of("vlmconsole.jobs.bench:KIND") == ""
    )
    planned = adding.plan(Preset("own", f"{module}:KIND", "Own", {}), [], lab.places)
    number = adding.add(lab.store, planned)
    monkeypatch.delenv(TRUSTED_VARIABLE)
    assert lab.ends(number) == ["done"]  # a worker has neither that path nor that variable
    assert lab.run(number).read_json("summary.json") == {"found": str(file)}


def test_a_title_tells_the_settings_that_were_changed(places: Places) -> None:
    """The title of 30 steps and 480 answers stood over 20 steps."""

    def title(name: str, *sets: str) -> str:
        return adding.plan(load_preset(name), sets, places)[-1].job.title

    own = load_preset("grpo-30-tiny").title
    assert title("grpo-30-tiny") == title("grpo-30-tiny", "steps=30", "lr=0.00001") == own
    assert title("grpo-30-tiny", "seed=3") == own  # nothing that the preset states
    changed = title("grpo-30-tiny", "steps=20", "answers=2")
    assert "480" not in changed and "grpo-30-tiny with steps = 20, answers = 2" in changed
    assert "grid.concurrency = [1, 2]" in title("cb-grid-tiny", "grid.concurrency=[1, 2]")
    many = title("grpo-30-tiny", "steps=20", "answers=2", "lr=1e-3", "validate_every=5", "checkpoint_every=9")
    assert many.endswith("and 2 more")
    steps = [
        {"name": "short", "preset": "grpo-30-tiny", "set": {"steps": 20}},
        {"name": "long", "preset": "grpo-30-tiny"},
    ]
    flow = adding.plan(Preset("f", "flow", "F", {"steps": steps}), ["long.answers=2"], places)
    assert "grpo-30-tiny with steps = 20" in flow[1].job.title and "grpo-30-tiny with answers = 2" in flow[2].job.title
