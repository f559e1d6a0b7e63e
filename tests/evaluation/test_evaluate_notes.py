"""What reading the answers shows: notes that touch no score, agreement of two runs, the spread of trainings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from evaluated import Bench
from refusals import mentions, refused

from vlmconsole.evaluation.agreement import agreement
from vlmconsole.evaluation.notes import NoteError, add_note, read_notes
from vlmconsole.evaluation.spread import by_seed
from vlmconsole.gates.verdict import judge
from vlmconsole.reports import claimed
from vlmconsole.reports.parts import Paragraph
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_notes_are_only_added_and_touch_neither_run_nor_scores(bench: Bench) -> None:
    run, evaluation = bench.attempt()
    evaluation.answer()
    bench.ledger.seal(run)
    before = judge(run, bench.ledger).to_json()
    one = add_note(bench.home, run, "small-test-hollow-00002", "Wrong target", "took the outline for a square")
    add_note(bench.home, run, "small-test-hollow-00002", "misread letter", side="before")
    path = next((bench.home / "notes").iterdir())
    path.write_bytes(path.read_bytes() + b'{"torn": ')
    add_note(bench.home, run, "small-test-regular-00000", "wrong target")
    found = read_notes(bench.home, run)
    assert [(n.side, n.tag) for n in found] == [
        ("after", "wrong target"),
        ("before", "misread letter"),
        ("after", "wrong target"),
    ]
    assert found[0] == one
    assert bench.ledger.verify(run).status == "intact"
    assert judge(run, bench.ledger).to_json() == before
    for sample, tag in (("nosuch", "x"), ("small-test-hollow-00002", ""), ("small-test-hollow-00002", "a\nb")):
        with pytest.raises(NoteError):
            add_note(bench.home, run, sample, tag)


def test_agreement_counts_like_answers_and_still_says_why_the_runs_may_not_be_paired(bench: Bench) -> None:
    wrong = frozenset({"small-test-regular-00001"})
    one, evaluation = bench.attempt(plan=False, paired=False)
    evaluation.answer()
    two, evaluation = bench.attempt(plan=False, paired=False, wrong=wrong, settings={"batch": 7})
    evaluation.answer()
    found = agreement(one, two)
    assert (found.n, found.differing) == (30, tuple(wrong))
    assert mentions(found.sentence(), "29 of 30", "96.7 %")
    assert mentions(found.sentence(), "not", "paired", "batch")
    assert json.loads(json.dumps(found.to_json()))["pairable"] is False
    assert agreement(one, one).unlike == ()
    bench.ledger.seal(two)
    assert agreement(one, two, ledger=bench.ledger).changed == ()
    two.file("before.jsonl").write_text(two.file("before.jsonl").read_text() + " \n")
    changed = agreement(one, two, ledger=bench.ledger).sentence()
    assert mentions(changed, "Warning", two.name, "before.jsonl")
    for text in ("3", "", '{"before": 3}'):
        two.file("conditions.json").write_text(text)
        unlike = agreement(two, two).unlike
        assert any(mentions(text, two.name, "no conditions", "before") for text in unlike), "alike by lack of them"


def test_notes_and_agreement_on_the_command_line(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    from vlmconsole.cli import main

    run, evaluation = bench.attempt(plan=False, paired=False)
    evaluation.answer()

    def told(*words: str) -> Any:
        with pytest.raises(SystemExit) as ended:
            main(["--home", str(bench.home), "--json", "gates", *words])
        out = capsys.readouterr().out
        return ended.value.code, json.loads(out) if out.strip() else None

    assert told("note", run.name, "--sample", "small-test-naming-00001", "--tag", "wrong target")[0] == 0
    code, value = told("notes", run.name)
    assert (code, value["tags"], value["notes"][0]["side"]) == (0, {"wrong target": 1}, "before")
    assert told("note", run.name, "--sample", "nosuch", "--tag", "x")[0] == 2
    code, value = told("agree", run.name, run.name)
    assert (code, value["share"], value["pairable"]) == (0, 1.0, True)


def test_the_spread_between_trainings_stands_beside_the_interval_over_pictures(bench: Bench) -> None:
    from vlmconsole.evaluation.spread import spread

    def seed(number: int, wrong: int, **more: Any) -> RunFolder:
        bad = frozenset(f"small-test-hollow-{n:05d}" for n in range(wrong))
        sides = {
            "before": {"wrong": frozenset(f"small-test-hollow-{n:05d}" for n in range(8))},
            "after": {"wrong": bad, **more},
        }
        run, evaluation = bench.attempt(plan=False, per_side=lambda side: sides[side])
        evaluation.answer()
        told = run.read_json("conditions.json")
        told["after"]["adapter"] = f"seed-{number}"
        run.write_json("conditions.json", told)
        return run

    one, two = seed(1, 0), seed(2, 3)
    groups = {found.group: found for found in spread([one, two])}
    assert groups["hollow"].all_correct == (1.0, 0.7)
    assert [round(difference, 6) for difference, _, _ in groups["hollow"].intervals] == [0.8, 0.5]
    assert groups["regular"].all_correct == (1.0, 1.0)
    assert mentions(groups["hollow"].sentence(), "70.0–100.0 %", "2 trainings", "100.0, 70.0", "n = 10")
    with refused("runs-few", "two"):
        spread([one])
    with refused("adapter-twice"):
        spread([one, one])
    with refused("answers-missing", "1", "after"):
        spread([one, seed(3, 0, fails=frozenset({"small-test-regular-00003"}))])


def test_a_report_puts_the_seeds_of_one_training_side_by_side_and_no_other_training_with_them(bench: Bench) -> None:
    places = Places(bench.home)

    def judged(seed: int, steps: int, wrong: int) -> RunFolder:
        spec = {"seed": seed, "steps": steps}
        trained = RunFolder.create(places.runs, kind="grpo", preset="g", spec=spec, title="g", home=bench.home)
        trained.append_jsonl("training.jsonl", {"step": 1})
        bad = frozenset(f"small-test-hollow-{n:05d}" for n in range(wrong))
        run, evaluation = bench.attempt(per_side=lambda side: {"wrong": bad if side == "after" else frozenset()})
        evaluation.answer()
        told = run.read_json("conditions.json")
        run.write_json("conditions.json", {**told, "after": {**told["after"], "adapter": f"seed-{seed}"}})
        run.write_json("job.json", {**run.job(), "spec": {"after_model": str(trained.file("model"))}})
        return run

    one, two, longer = judged(1, 3, 0), judged(2, 3, 3), judged(3, 30, 1)
    assert [[run.name for run in group] for group in by_seed([one, longer, two], places)] == [[one.name, two.name]]
    made = claimed.sections([one, two, longer], places, ["one", "two", "longer"])
    (apart,) = [section for section in made if section.title == "Between training seeds"]
    (said,) = apart.parts
    assert (
        isinstance(said, Paragraph)
        and said.lines[0] == f"2 seeds: {one.name}, {two.name}"
        and "Exploratory" in said.note
    )
    assert any(mentions(line, "70.0–100.0 %", "2 trainings") for line in said.lines)
    assert not [s for s in claimed.sections([one, longer], places, ["a", "b"]) if s.title == "Between training seeds"]


def test_a_judges_scores_are_held_against_ones_own_notes(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    from vlmconsole.cli import main

    wrong = frozenset(f"small-test-regular-{number:05}" for number in range(8))
    run, evaluation = bench.attempt(plan=False, paired=False, wrong=wrong)
    evaluation.answer()

    def told() -> Any:
        with pytest.raises(SystemExit) as ended:
            main(["--home", str(bench.home), "--json", "gates", "judge", run.name])
        return ended.value.code, json.loads(capsys.readouterr().out)

    names = [str(line["id"]) for line in run.read_jsonl("before.jsonl")]
    assert len(names) == 30
    for name in names[:-1]:
        add_note(bench.home, run, name, "wrong" if name in wrong else "right", side="before")
    code, value = told()
    assert code == 1 and value["error"]["code"] == "notes-few" and "29" in value["error"]["message"]
    add_note(bench.home, run, names[-1], "right", side="before")
    code, value = told()
    assert (code, value["n"], value["kappa"], value["same"]) == (0, 30, 1.0, 1.0)
    for name in sorted(wrong)[:4]:  # on second thoughts: the later note counts
        add_note(bench.home, run, name, "right", side="before")
    value = told()[1]
    assert value["same"] == pytest.approx(26 / 30)
    # Observed 26/30; by chance 22/30 · 26/30 + 8/30 · 4/30.
    chance = (22 * 26 + 8 * 4) / 900
    assert value["kappa"] == pytest.approx((26 / 30 - chance) / (1 - chance))
    assert value["low"] <= value["kappa"] <= value["high"]
