"""What is tested and what it stands against, from a few names; what cannot be meant is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusals import refused

from vlmconsole.cli.evaluate import result_of
from vlmconsole.evaluation.named_sides import BASE, sides_of
from vlmconsole.evaluation.settings import EvaluateSettings
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places

NOBODY = {"server": "", "base": "", "adapter": "", "against": ""}


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A lab with two server profiles and a model folder."""
    places = Places(tmp_path).ensure()
    for name in ("box-a", "box-b"):
        text = f'engine = "openai"\nbase_url = "http://127.0.0.1:9/{name}"\nmodel = "m"\n'
        (places.servers / f"{name}.toml").write_text(text)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    return places


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({}, {"paired": False, "before_adapter": ""}),
        ({"adapter": "x"}, {"paired": False, "before_adapter": "x"}),
        ({"adapter": "x", "against": BASE}, {"paired": True, "after_adapter": "x"}),
        ({"server": "box-a"}, {"backend": "server", "server": "box-a", "paired": False}),
        ({"server": "box-a", "against": "box-b"}, {"server": "box-b", "after_server": "box-a", "paired": True}),
        ({"base": "here", "against": "MODEL"}, {"before_model": "MODEL", "after_model": "here"}),
        ({"against": "asset:tiny-qwen2.5-vl"}, {"before_model": "asset:tiny-qwen2.5-vl", "after_adapter": ""}),
    ],
)
def test_names_become_settings_of_an_evaluation(
    places: Places, given: dict[str, str], meant: dict[str, object]
) -> None:
    whole = str(places.home / "model")
    settings = sides_of(places, **{**NOBODY, **{key: value.replace("MODEL", whole) for key, value in given.items()}})
    wanted = {key: value.replace("MODEL", whole) if isinstance(value, str) else value for key, value in meant.items()}
    assert {key: settings[key] for key in wanted} == wanted
    EvaluateSettings(data=["d"], **settings)


def test_what_cannot_be_meant_is_refused_by_name(places: Places) -> None:
    with refused("sides-both", "server", "base"):
        sides_of(places, **{**NOBODY, "server": "box-a", "base": "b"})
    with refused("sides-same", "base"):
        sides_of(places, **{**NOBODY, "against": BASE})
    with refused("sides-unlike", "box-a"):
        sides_of(places, **{**NOBODY, "against": "box-a"})
    with refused("against-unknown", "nothing"):
        sides_of(places, **{**NOBODY, "against": "nothing"})


def test_the_result_holds_the_tested_side_and_what_failed(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, kind="evaluate", preset="eval", spec={}, title="t", home=tmp_path)
    score = {"n": 4, "answered": 3, "failed": 1, "correct": 2, "invalid": 1, "mean": 0.6, "low": 0.1, "high": 0.9}
    group = {"scores": {"before": {**score, "mean": 0.2}, "after": score}}
    paired = {"difference": 0.4, "low": 0.1, "high": 0.7, "wins": 2, "losses": 0, "mcnemar_p": 0.5}
    run.write_json(
        "summary.json",
        {"scores": {"before": {**score, "mean": 0.2}, "after": score}, "groups": {"g": group}, "paired": paired},
    )
    value = result_of(run, "shops")
    assert (value["n"], value["failed"], value["invalid"], value["correct"]) == (3, 1, 1, 2)
    assert value["score"] == {"mean": 0.6, "low": 0.1, "high": 0.9} and value["groups"]["g"]["mean"] == 0.6
    assert value["paired"]["wins"] == 2 and "blind" not in value and value["dataset"] == "shops"
