"""Two trainings side by side: conditions named, figures and curves, and families that have nothing in common."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recorded_runs import BENCH, lab_with_runs
from refusals import mentions, refused
from trained_runs import training

from vlmconsole.cli import main
from vlmconsole.compare.trainings import POINTS, compare_trainings, refusal
from vlmconsole.runs.folder import RunFolder


def told(capsys: pytest.CaptureFixture[str], home: Path, *words: str) -> tuple[int, str]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main(["--home", str(home), *words])
    return int(left.value.code or 0), capsys.readouterr().out


def test_two_seeds_are_refused_by_name_and_compared_when_the_seed_is_the_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = (
        training(tmp_path / "runs", "one"),
        training(tmp_path / "runs", "two", seed=2, ends=0.3, checkpoint_every=9),
    )
    code, words = told(capsys, tmp_path, "runs", "compare", one.name, other.name)
    assert code == 3 and mentions(words, "1 condition", "seed", "2") and "--only seed" in words
    code, out = told(capsys, tmp_path, "runs", "compare", one.name, other.name, "--only", "seed", "--json")
    value = json.loads(out)
    assert code == 0 and value["comparable"] and value["only"]["key"] == "seed"
    figures = {row["key"]: row for row in value["figures"]}
    assert figures["loss"]["a"] == pytest.approx(0.1225) and figures["loss"]["b"] == pytest.approx(0.3175)
    assert (figures["dev"]["a"], figures["dev.1"]["a"], figures["dev.1"]["n_a"]) == (1.0, 0.5, 2)
    assert figures["loss"]["n_a"] == 20 and figures["epoch"]["a"] == 2
    assert set(value["curves"]) == {"loss", "grad_norm", "lr"} and len(value["curves"]["loss"]["b"]) == 20
    code, words = told(capsys, tmp_path, "runs", "compare", one.name, other.name, "--only", "seed")
    assert "loss                     a ▇" in words and "0.955 → 0.1" in words and "no verdict" in words
    assert "epoch 1 (n = 2)" in words and "steps: a 20, b 20" in words


def test_what_a_training_depends_on_is_compared_and_what_it_does_not_is_not(tmp_path: Path) -> None:
    one = training(tmp_path / "runs", "one")
    for key, value in (("lr", 0.001), ("model_sha256", "c" * 64), ("data", {"mini": "e" * 64}), ("hardware", "a card")):
        other = training(tmp_path / "runs", f"other-{key}", **{key: value})
        assert [d.key for d in compare_trainings(one, other).comparison.differs] == [key]
        assert compare_trainings(one, other, key).comparison.comparable
    started = training(tmp_path / "runs", "repair", parent_sha256="a" * 64)
    unlike = compare_trainings(one, started).comparison.sentence()
    assert mentions(unlike, "starts from", "fresh") and "aaaa" in unlike
    assert compare_trainings(one, training(tmp_path / "runs", "same", base="x")).comparison.comparable
    with refused("condition-unknown", "rate"):
        compare_trainings(one, one, "rate")


def test_a_training_that_did_not_end_is_shown_and_not_compared_and_one_without_a_step_is_named(tmp_path: Path) -> None:
    one, cut = training(tmp_path / "runs", "one"), training(tmp_path / "runs", "cut", state="failed")
    found = compare_trainings(one, cut)
    assert not found.comparison.comparable and mentions(found.comparison.sentence(), cut.name, "failed")
    with refused("steps-missing", "none"):
        compare_trainings(one, training(tmp_path / "runs", "none", steps=0))


def test_long_curves_are_thinned_by_means(tmp_path: Path) -> None:
    long = training(tmp_path / "runs", "long", steps=POINTS * 2)
    curve = compare_trainings(long, long).a.curves["loss"]
    assert len(curve) == POINTS and curve[0][0] == 2.0 and curve[-1][0] == POINTS * 2
    assert curve[0][1] == pytest.approx((1 - 0.9 / 800 + 1 - 1.8 / 800) / 2)


def test_runs_of_other_families_get_one_clear_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = lab_with_runs(tmp_path, BENCH).runs / BENCH
    sft, grpo = training(tmp_path / "runs", "one"), training(tmp_path / "runs", "rl", kind="grpo")
    code, words = told(capsys, tmp_path, "runs", "compare", sft.name, measured.name)
    assert code == 3 and len(words.strip().splitlines()) <= 3
    assert mentions(words, "training", "sft", "measurement", "server", "no figure")
    code, out = told(capsys, tmp_path, "runs", "compare", sft.name, grpo.name, "--json")
    assert code == 3 and mentions(json.loads(out)["sentence"], "losses", "not")
    judged = RunFolder.create(tmp_path / "runs", kind="evaluate", preset="e", spec={}, title="e", home=tmp_path)
    assert mentions(refusal(judged, sft), "evaluation", "training", "no figure")
    assert refusal(sft, training(tmp_path / "runs", "two")) == ""
