"""A first plan for a dataset: what is open is refused until it is filled in, and then it freezes, binds and judges."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from own_datasets import write_dataset
from PIL import Image
from refusals import mentions, refused

from vlmconsole.cli import main
from vlmconsole.data.dataset import manifest_digest, read_manifest
from vlmconsole.data.example import Example, ExampleTurn
from vlmconsole.data.rows import IMAGE_TAG
from vlmconsole.gates.binding import bind
from vlmconsole.gates.draft import draft_groups
from vlmconsole.gates.plan import load_plan
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places


def examples(split: str, n: int, **changes: Any) -> list[Example]:
    made = []
    for at in range(n):
        out = io.BytesIO()
        Image.new("RGB", (8, 8), (at, len(split), 0)).save(out, "PNG")
        turns = (ExampleTurn("user", f"{IMAGE_TAG}Price?"), ExampleTurn("assistant", "2"))
        example = Example(f"{split}-{at}", (out.getvalue(),), turns, "2", "number", {"tolerance": 0.05}, split=split)
        made.append(replace(example, **changes))
    return made


def dataset(home: Path, name: str = "shops", **splits: list[Example]) -> Path:
    """A dataset folder with these test splits, as an import leaves it."""
    return write_dataset(home, name, {split: ("test", some) for split, some in splits.items()})


def told(capsys: pytest.CaptureFixture[str], home: Path, *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main(["--home", str(home), *words])
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


def test_a_draft_is_open_until_its_limits_are_filled_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = dataset(tmp_path, test=examples("test", 12), other=examples("other", 8))
    code, out, _ = told(capsys, tmp_path, "gates", "init", "shops", "--json")
    value = json.loads(out)
    assert code == 0 and [group["n"] for group in value["groups"]] == [12, 8]
    path = Path(value["path"])
    assert path == tmp_path / "shops-gates.toml"
    assert told(capsys, tmp_path, "gates", "init", "shops")[0] == 2, "what was edited is not written over"
    code, _, err = told(capsys, tmp_path, "gates", "freeze", str(path), "--data", "shops")
    assert code == 2 and mentions(err, "at_least", "score", "valid")
    text = path.read_text()
    filled = text.replace("# at_least =", "at_least = 0.5  #").replace("# at_most =", "at_most = 5.0  #")
    path.write_text(filled)
    code, out, _ = told(capsys, tmp_path, "gates", "freeze", str(path), "--data", "shops", "--json")
    frozen = json.loads(out)
    assert code == 0 and frozen["gates"] == 5 and frozen["pictures"] == 20
    assert {entry["state"] for entry in frozen["power"]} <= {"ok", "vacuous", "unreachable"}
    plan = bind(load_plan(str(path)), [folder])
    assert plan.groups[0].options == {"tolerance": 0.05} and plan.trained is None and plan.blind == "swap"
    assert plan.data.digests == {"shops": manifest_digest(read_manifest(folder))}
    rows = plan.data.pictures["test"]
    assert all(len(row.options_sha) == 64 for row in rows) and len({row.options_sha for row in rows}) == 1
    code, out, _ = told(capsys, tmp_path, "gates", "show", frozen["sha256"][:12])
    assert code == 0 and mentions(out, "power", "points", "assumed")


@pytest.mark.parametrize("group", ["test", "an example's own group"])
def test_a_base_that_was_measured_stands_in_the_draft_and_in_the_power(
    group: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = dataset(tmp_path, test=examples("test", 40))
    run = RunFolder.create(Places(tmp_path).runs, kind="evaluate", preset="e", spec={}, title="e", home=tmp_path)
    side = {"n": 40, "answered": 40, "valid": 40, "all_correct": 0.25, "partial": 0.25, "reward": 0.25}
    data = {"shops": manifest_digest(read_manifest(folder))}
    run.write_json("summary.json", {"groups": {group: {"before": side}}, "data": data})
    for at in range(40):
        right = at % 4 == 0
        line = {"split": "test", "http_ok": True, "partial": float(right), "all_correct": right, "valid": True}
        run.append_jsonl("before.jsonl", line)
    run.write_json("conditions.json", {"before": {"adapter": None, "model_sha256": "b" * 64}})
    run.set_state("done")
    told(capsys, tmp_path, "gates", "init", "shops")
    text = (tmp_path / "shops-gates.toml").read_text()
    assert mentions(text, "25.0 %", run.name)
    (tmp_path / "shops-gates.toml").write_text(text.replace("# at_least =", "at_least = 0.5  #"))
    _, out, _ = told(capsys, tmp_path, "gates", "freeze", "./shops-gates.toml", "--data", "shops", "--json")
    score = next(entry for entry in json.loads(out)["power"] if entry["metric"] == "score")
    assert (score["base"], score["base_from"]) == (0.25, run.name) and score["passes_at"] > 0.5


def test_a_split_of_several_scorers_or_none_has_no_plan(tmp_path: Path) -> None:
    mixed = dataset(tmp_path, "mixed", test=[*examples("a", 3), *examples("b", 3, scorer="exact", options={})])
    with refused("scorer-several", "2 scorers", "exact", "number"):
        draft_groups(mixed)
    with refused("scorer-several", "no scorer"):
        draft_groups(dataset(tmp_path, "bare", test=examples("a", 3, scorer="", options={})))
    with refused("examples-few", "1"):
        draft_groups(dataset(tmp_path, "single", test=examples("a", 1)))


def test_examples_with_options_of_their_own_leave_them_out_of_the_plan(tmp_path: Path) -> None:
    several = [*examples("a", 2), *examples("b", 2, options={"tolerance": 0.5})]
    (group,) = draft_groups(dataset(tmp_path, "several", test=several))
    assert group.options == {} and group.scorer == "number"
