"""`vlmconsole eval` on a real dataset, by the bundled model in this process: one command, no preset."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from own_datasets import shapes
from refusals import mentions

from vlmconsole.cli import main


def told(capsys: pytest.CaptureFixture[str], home: Path, *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main(["--home", str(home), "eval", *words])
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


@pytest.mark.slow
def test_a_dataset_is_evaluated_with_and_without_its_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLMCONSOLE_SUPERVISOR_IDLE", "1")
    shapes(tmp_path, n=12)
    code, out, _ = told(capsys, tmp_path, "shapes", "-n", "8", "--blind", "grey", "--json")
    value = json.loads(out)
    assert code == 0 and value["state"] == "done" and value["dataset"] == "shapes"
    assert value["n"] == 8 and value["failed"] == 0 and 0 <= value["score"]["low"] <= value["score"]["mean"]
    assert sum(group["n"] for group in value["groups"].values()) == 8 and set(value["groups"]) <= {"round", "square"}
    assert value["blind"]["how"] == "grey" and value["blind"]["n"] == 8 and value["scorers"] == ["exact/1"]
    assert value["conditions"]["before"]["n"] == value["conditions"]["blind"]["n"] == 8


def test_what_cannot_be_evaluated_is_refused_before_it_is_queued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes(tmp_path)
    for words, nouns in (
        (["nothing"], ("nothing",)),
        (["shapes", "--blind", "dark"], ("grey", "swap")),
        (["shapes", "--split", "nowhere"], ("nowhere",)),
        (["shapes", "--against", "base"], ("adapter",)),
        (["shapes", "--scorer", "guess"], ("guess",)),
        (["shapes", "--plan", "abcdef123456"], ("plan",)),
    ):
        code, _, err = told(capsys, tmp_path, *words)
        assert code == 2 and mentions(err, *nouns), (words, err)
    assert not list((tmp_path / "runs").glob("*"))
