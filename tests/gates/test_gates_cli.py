"""`vlmconsole gates` and `vlmconsole data`: exit codes, the JSON contract, JUnit, and what a person reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import tomlkit
from judged import PLAN, WRONG, lines_of, plan, right, small_dataset, write_lines, write_run
from refusals import check_stderr, mentions

from vlmconsole.cli import main
from vlmconsole.desks.gates import GateDesk
from vlmconsole.gates.evidence import Problem
from vlmconsole.gates.frozen import read_frozen_plan
from vlmconsole.gates.junit import junit
from vlmconsole.gates.verdict import judge
from vlmconsole.ledger.chain import Ledger
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def lab(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words: str) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main(["--home", str(tmp_path), *words])
        said = capsys.readouterr()
        return Result(int(left.value.code or 0), said.out, said.err)

    call.home = tmp_path  # type: ignore[attr-defined]
    return call


def made(lab: Any, n_hollow: int = 9) -> RunFolder:
    return write_run(lab.home, plan(), right(9, {"hollow": 2}), right(9, {"hollow": n_hollow}))


def test_check_says_pass_fail_and_cannot_judge_by_its_exit_code(lab: Any) -> None:
    run = made(lab)
    passed = lab("gates", "check", "last", "--json")
    assert passed.code == 0 and passed.json["verdict"] == "PASS" and len(passed.json["gates"]) == 5
    failing = made(lab, n_hollow=3)
    failed = lab("gates", "check", failing.name, "--json")
    assert failed.code == 1 and failed.json["verdict"] == "FAIL"
    first = failed.json["gates"][0]
    assert (first["verdict"], first["limit"], first["name"]) == ("FAIL", 0.8, "hollow: partial reward")
    assert first["margin"] == pytest.approx(0.3 - 0.8) and first["interval"][0] <= 0.1 <= first["interval"][1]
    lines = lines_of(run, "after.jsonl")
    write_lines(run, "after.jsonl", [{**lines[0], "answer": WRONG}, *lines[1:]])
    unclear = lab("gates", "check", str(run.path), "--json")
    assert unclear.code == 3 and unclear.json["verdict"] == "CANNOT JUDGE"
    assert mentions(unclear.json["problems"][0]["text"], "scores", "after.jsonl")
    assert lab("gates", "check", "no-such-run").code == 2


def test_check_in_words_names_counts_hash_and_the_failing_gate_first(lab: Any) -> None:
    run = made(lab, n_hollow=3)
    said = lab("gates", "check", run.name)
    assert said.code == 1
    lines = said.out.splitlines()
    assert lines[0].startswith("FAIL") and mentions(lines[0], "3 pass", "2 fail", "0 cannot judge")
    assert "sha " in lines[1]
    rows = [line for line in lines if "✗" in line or "✓" in line]
    assert "hollow" in rows[0] and "FAIL" in rows[0] and "≥ 0.8" in rows[0]


def test_junit_has_a_failure_for_fail_and_an_error_for_cannot_judge(lab: Any, tmp_path: Path) -> None:
    run = made(lab, n_hollow=3)
    lab("gates", "check", run.name, "--junit", str(tmp_path / "a.xml"))
    suite = ElementTree.parse(tmp_path / "a.xml").getroot()
    assert (suite.get("tests"), suite.get("errors")) == ("5", "0")
    assert next(case.get("name") for case in suite if case.find("failure") is not None) == "hollow: partial reward"
    run.file("conditions.json").unlink()
    lab("gates", "check", run.name, "--junit", str(tmp_path / "b.xml"))
    assert ElementTree.parse(tmp_path / "b.xml").getroot().get("errors") == "5"
    run.file("plan.json").unlink()
    assert lab("gates", "check", run.name, "--junit", str(tmp_path / "c.xml")).code == 3
    assert ElementTree.parse(tmp_path / "c.xml").getroot().get("errors") == "1"
    assert "cannot be written" in lab("gates", "check", run.name, "--junit", str(tmp_path / "no" / "c.xml")).err


@pytest.mark.parametrize(
    "odd", ["\x00", "\x1b[31m", "\x08", "\x85", "\ufffe", "\uffff", "\ud800", "\u202e", "]]>&<\"'"]
)
def test_junit_stays_xml_whatever_names_hold(lab: Any, tmp_path: Path, odd: str) -> None:
    run = made(lab, n_hollow=3)
    verdict = judge(run, Ledger(Places(tmp_path).ledger))
    gates = tuple(replace(one, why=odd) for one in verdict.gates)
    for wrong in (
        replace(verdict, run=f"a{odd}b", gates=gates),
        replace(verdict, run=odd, gates=(), problems=(Problem("plan", odd),)),
    ):
        document = junit(wrong)
        assert b"\x1b" not in document and b"\x00" not in document
        names = [case.get("classname") for case in ElementTree.fromstring(document).iter("testcase")]
        assert names and all(name is not None for name in names)


def test_show_tells_plan_flips_earlier_verdicts_and_claims(lab: Any) -> None:
    run = made(lab)
    lab("gates", "check", run.name)
    shown = lab("gates", "show", run.name, "--json").json
    assert shown["frozen_plan"]["gates"][0]["at_least"] == 0.8
    assert shown["groups"]["hollow"]["wins"] == 7
    assert [entry["verdict"] for entry in shown["verdicts"]] == ["PASS"]
    assert any("non-overlapping" in line for line in shown["claims"]["may"])
    assert any("real photos" in line for line in shown["claims"]["may_not"])
    words = lab("gates", "show", run.name).out
    assert "McNemar" in words and "may not" in words and "the tests' own" in words


def test_show_of_a_frozen_plan_by_hash_beginning_or_name(lab: Any, tmp_path: Path) -> None:
    small_dataset(lab.home)
    mine = tmp_path / "mine.toml"
    mine.write_text(tomlkit.dumps({**PLAN, "name": "mine", "intervals": "bounded"}))
    bound = lab("gates", "freeze", str(mine), "--data", "small", "--json").json
    for name in (bound["sha256"][:12], bound["sha256"], "mine"):
        shown = lab("gates", "show", name, "--json")
        assert shown.code == 0 and shown.json["sha256"] == bound["sha256"], shown.err
        assert shown.json["frozen_plan"]["gates"][0]["at_least"] == 0.8
    words = lab("gates", "show", bound["sha256"][:12]).out
    assert bound["sha256"] in words and "hollow: partial reward" in words and "≥ 0.8" in words
    assert (
        mentions(words, "30 images", "small")
        and f"plan={bound['sha256'][:12]}" in words
        and "its limits: frozen" in words
    )
    run = made(lab)
    lab("gates", "check", run.name)
    assert f"{run.name}: PASS" in lab("gates", "show", "small-plan").out
    limits = shown.json["limits_sha256"]
    assert "not bound" in lab("gates", "show", limits[:12]).out
    assert lab("gates", "show", "deadbeefdeadbeef").code == 2
    taken = read_frozen_plan(bound["sha256"][:12], lab.home, Ledger(lab.home / "ledger.jsonl"))  # what --set plan= does
    assert taken.sha256 == bound["sha256"]
    Path(bound["path"]).unlink()
    assert lab("gates", "show", bound["sha256"][:12]).code == 3


def test_a_plan_that_was_never_frozen_is_shown_with_how_to_freeze_it(lab: Any, tmp_path: Path) -> None:
    shown = lab("gates", "show", "lab-15")
    assert shown.code == 0 and mentions(shown.out, "not frozen", "nothing")
    assert "≥ 85 %" in shown.out and "gates freeze lab-15 --data repair-2" in shown.out
    value = lab("gates", "show", "sft-7-tiny", "--json").json
    assert value["frozen"] is None and len(value["plan"]["gates"]) == value["gates"] == 7
    mine = tmp_path / "mine.toml"
    mine.write_text(tomlkit.dumps({**PLAN, "name": "mine", "intervals": "bounded"}))
    assert "mine · not frozen" in lab("gates", "show", str(mine)).out
    assert lab("gates", "show", "nonsense").code == 2 and lab("gates", "show", str(tmp_path / "no.toml")).code == 2
    assert "lab-15" in lab("gates", "list", "--json").json["not_frozen"]
    said = lab("gates", "freeze", "lab-15", "--json").json["sha256"]
    assert "lab-15" not in lab("gates", "list", "--json").json["not_frozen"]
    nowhere = lab("gates", "freeze", "sft-7", "--data", "nowhere")
    assert nowhere.code == 2 and "data make nowhere" in nowhere.err
    for name in ("lab-15", "sft-7", said[:12]):  # a plan where a run is wanted
        refused = lab("gates", "check", name)
        assert refused.code == 2 and f"“{name}” is a plan" in refused.err, refused.err


def test_a_junit_file_that_cannot_be_written_is_no_failed_gate(lab: Any, tmp_path: Path) -> None:
    run = made(lab)
    refused = lab("gates", "check", run.name, "--junit", str(tmp_path / "none" / "gates.xml"))
    assert refused.code == 2 and "cannot be written" in refused.err
    assert lab("gates", "show", run.name, "--json").json["verdicts"] == []


def test_a_freezing_is_told_for_people(lab: Any) -> None:
    run = RunFolder.create(lab.home / "runs", kind="freeze", preset="freeze-gates", spec={}, title="", home=lab.home)
    sha, base = "39b1d7cbe986" + 52 * "0", "ab" * 32
    summary = {"frozen": sha, "t": 1796023469.442, "plan": "sft-7-tiny", "path": "/x.json", "gates": 7, "pictures": 30}
    run.write_json("summary.json", {**summary, "before_adapter": None, "base_sha256": base, "data": {}})
    run.set_state("done", started=1.0, ended=2.0)
    shown = lab("runs", "show", "last").out
    assert (
        mentions(shown, "before", "base model")
        and f"base: {base[:12]}…" in shown
        and "--set plan=39b1d7cbe986" in shown
    )
    assert "frozen: 2026-12-" in shown or "frozen: 2026-11-" in shown
    assert "None" not in shown and "1796023469" not in shown and "base_sha256" not in shown
    assert "frozen 39b1d7cbe986" in lab("runs", "list").out
    assert lab("runs", "list", "--json").json["runs"][0]["result"] == "frozen 39b1d7cbe986"


def test_a_run_without_a_plan_is_not_counted_as_judged(lab: Any) -> None:
    RunFolder.create(lab.home / "runs", kind="evaluate", preset="bare", spec={}, title="", home=lab.home)
    checked = lab("gates", "check", "bare")
    assert checked.code == 3 and checked.out.splitlines()[0].strip() == "CANNOT JUDGE"


def test_freeze_a_plan_for_the_lab_then_bound_then_for_a_run(lab: Any, tmp_path: Path) -> None:
    free = lab("gates", "freeze", "lab-15", "--json")
    assert free.code == 0 and (free.json["gates"], free.json["pictures"]) == (15, 0)
    assert json.loads(Path(free.json["path"]).read_bytes())["name"] == "lab-15"
    again = lab("gates", "freeze", "lab-15", "--json")
    assert (again.json["sha256"], again.json["frozen"]) == (free.json["sha256"], free.json["frozen"])
    small_dataset(lab.home)
    mine = tmp_path / "mine.toml"
    mine.write_text(tomlkit.dumps({**PLAN, "intervals": "bounded"}))
    bound = lab("gates", "freeze", str(mine), "--data", "small", "--json")
    assert bound.code == 0 and bound.json["pictures"] == 30
    frozen = [e for e in Ledger(lab.home / "ledger.jsonl").read().entries if e["kind"] == "frozen"]
    assert len(frozen) == 3  # the lab's, the small one's limits, and the same bound to its pictures
    run = RunFolder.create(lab.home / "runs", kind="evaluate", preset="r", spec={}, title="", home=lab.home)
    assert lab("gates", "freeze", str(mine), "--data", "small", "--run", run.name).code == 0
    assert run.file("plan.json").exists()
    run.append_jsonl("before.jsonl", {"id": 1})
    refused = lab("gates", "freeze", "lab-15", "--run", run.name)
    assert refused.code == 1 and "never edited" in refused.err
    assert lab("gates", "freeze", "lab-51").code == 2
    check_stderr(lab("gates", "freeze", "lab-15", "--data", "small").err, "lab-15", "repair-2", "small")


def test_data_make_check_show_and_list(lab: Any, tmp_path: Path) -> None:
    made_ = lab("data", "make", "exploratory-tiny", "--seed", "3", "--name", "mine", "--json")
    assert made_.code == 0 and made_.json["n"] == 24 and made_.json["seed"] == 3
    assert lab("data", "check", "mine").code == 0
    shown = lab("data", "show", "mine", "--split", "beyond", "-n", "4", "--out", str(tmp_path / "s.png"), "--json").json
    assert shown["sheet"] == str(tmp_path / "s.png") and len(shown["rows"]) == 4
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
    assert [row["name"] for row in lab("data", "list", "--json").json["datasets"]] == ["mine"]
    (Path(made_.json["path"]) / "beyond.objects.jsonl").write_text("")
    checked = lab("data", "check", "mine", "--json")
    assert checked.code == 1 and not checked.json["ok"]
    assert lab("data", "show", "mine", "--split", "nope").code == 2
    assert lab("data", "check", "nope").code == 2
    later = tmp_path / "later.toml"
    part = '{ replay = "nowhere:train", count = 1 }'
    later.write_text(f'title = "l"\nseed = 1\n[[splits]]\nname = "train"\nrole = "train"\nparts = [{part}]\n')
    assert "data make nowhere" in lab("data", "make", str(later)).err


def test_list_has_each_plan_once_with_what_it_judged_and_says_which_file_changed(lab: Any, tmp_path: Path) -> None:
    assert mentions(lab("gates", "list").out, "No", "plans", "yet")
    small_dataset(lab.home)
    mine = tmp_path / "mine.toml"
    mine.write_text(tomlkit.dumps({**PLAN, "name": "mine", "intervals": "bounded"}))
    bundled = lab("gates", "freeze", "lab-15", "--json").json  # limits alone: nothing came of them yet
    bound = lab("gates", "freeze", str(mine), "--data", "small", "--base", "tiny-qwen2.5-vl", "--json").json
    run = made(lab, n_hollow=3)
    lab("gates", "check", run.name)
    plans = {one["sha256"]: one for one in lab("gates", "list", "--json").json["plans"]}
    assert {one["name"] for one in plans.values()} == {"lab-15", "mine", "small-plan"} and len(plans) == 3
    assert plans[bundled["sha256"]]["pictures"] == 0 and plans[bundled["sha256"]]["limits"] is None
    waiting = plans[bound["sha256"]]
    assert (waiting["pictures"], waiting["runs"]) == (30, []) and waiting["limits"] <= waiting["frozen"]
    assert waiting["base_sha256"] == bound["base_sha256"] and len(waiting["base_sha256"]) == 64
    (judged,) = [one for one in plans.values() if one["name"] == "small-plan"]
    (use,) = judged["runs"]
    assert (use["run"], use["verdict"]) == (run.name, "FAIL") and "2 FAIL" in use["gates"]
    words = lab("gates", "list").out
    assert words.count("mine  ") == 1 and mentions(words, "no run", "yet") and f"  {run.name}" in words
    assert mentions(words, "base", "bound", "limits", "only")

    path = Path(bound["path"])
    path.write_bytes(path.read_bytes().replace(b'"at_least":0.8', b'"at_least":0.1'))
    (changed,) = [one for one in lab("gates", "list", "--json").json["plans"] if one["sha256"] == bound["sha256"]]
    assert mentions(changed["fault"], "changed", "frozen") and changed["path"] == str(path)
    path.unlink()
    assert mentions(lab("gates", "list").out, "file", "gone")


def test_the_screens_list_has_one_line_for_one_freezing(lab: Any, tmp_path: Path) -> None:
    small_dataset(lab.home)
    mine = tmp_path / "mine.toml"
    mine.write_text(tomlkit.dumps({**PLAN, "name": "mine", "intervals": "bounded"}))
    lab("gates", "freeze", str(mine), "--json")
    desk = GateDesk(Places(lab.home))
    assert [one.plan for one in desk.listing()] == ["mine"]  # the limits alone
    bound = lab("gates", "freeze", str(mine), "--data", "small", "--json").json
    assert len(list((lab.home / "plans").glob("*.json"))) == 2
    assert [one.name for one in desk.listing()] == [Path(bound["path"]).name]
