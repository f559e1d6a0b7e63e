"""A PASS by a plan that was frozen after its training began is never shown as a plain one."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from audited import PLAN, SmallLab

from vlmconsole.cli import main
from vlmconsole.desks.gates import GateDesk
from vlmconsole.desks.queue import VERDICTS, worst
from vlmconsole.desks.runs import line_of
from vlmconsole.gates.binding import bind, freeze_for_lab, freeze_for_run
from vlmconsole.gates.frozen_list import listed
from vlmconsole.gates.junit import junit
from vlmconsole.gates.plan import load_plan, parse_plan, plan_names
from vlmconsole.gates.verdict import Verdict, judge
from vlmconsole.ledger.chain import Ledger
from vlmconsole.reports import claimed, judged
from vlmconsole.runs.folder import to_json
from vlmconsole.text.signs import LATE_PASS


def evaluated(home: Path, *, late: bool) -> tuple[SmallLab, Verdict]:
    """A judged evaluation as the job leaves it, its plan frozen before the training or only for the run."""
    lab = SmallLab(home)
    lab.answers = {"before": 1, "after": 100}
    lab.train(frozen=not late)
    run = lab.evaluate()
    verdict = judge(run, lab.ledger)
    run.write_json("verdict.json", verdict.to_json())
    run.write_json("summary.json", {**run.read_json("summary.json"), "verdict": verdict.verdict})
    lab.finish()
    assert verdict.verdict == "PASS", [one.why for one in verdict.gates]
    return lab, verdict


@pytest.mark.parametrize("late", [False, True])
def test_every_list_and_head_and_report_labels_it(tmp_path: Path, late: bool) -> None:
    lab, verdict = evaluated(tmp_path, late=late)
    label = LATE_PASS if late else "PASS"
    assert (verdict.label, verdict.late) == (label, late)
    value = verdict.to_json()
    assert (value["verdict"], value["label"], value["frozen_late"]) == ("PASS", label, late)
    assert any("preregistered" in line for line in verdict.claims.may_not) is late
    assert not any("preregistered" in line for line in verdict.claims.may)
    desk = GateDesk(lab.places)
    (entry,) = [entry for entry in desk.listing() if entry.kind == "run" and entry.name == lab.run.name]
    assert entry.verdict == label
    opened = desk.open(entry).verdict
    assert opened is not None and opened.label == label
    (use,) = [use for plan in listed(lab.places, lab.ledger.read()) for use in plan.runs if use.verdict]
    assert use.label == label
    assert line_of(lab.run).verdict == label
    assert judged.sections(lab.run, lab.places)[0].title == f"Verdict: {label}"
    report = claimed.sections([lab.run], lab.places, ["one"])
    assert report[0].parts[0].rows[0][1] == label  # type: ignore[union-attr]
    suite = ElementTree.fromstring(junit(verdict))
    properties = {part.get("name"): part.get("value") for part in suite.iter("property")}
    assert properties["verdict"] == label and properties["frozen_late"] == str(late).lower()


def test_the_command_labels_it_and_keeps_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab, _ = evaluated(tmp_path, late=True)
    for words in (
        ("gates", "check", lab.run.name),
        ("gates", "show", lab.run.name),
        ("gates", "list"),
        ("runs", "list"),
    ):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--home", str(tmp_path)])
        assert ended.value.code == 0
        assert LATE_PASS in " ".join(capsys.readouterr().out.split()), words


def test_a_late_pass_is_worse_than_a_plain_one_in_a_flow() -> None:
    assert worst(["PASS", LATE_PASS, "PASS"]) == LATE_PASS
    assert worst([LATE_PASS, "FAIL"]) == "FAIL"
    assert VERDICTS.index("CANNOT JUDGE") < VERDICTS.index(LATE_PASS) < VERDICTS.index("PASS")


def test_a_plan_may_rule_that_a_late_freezing_cannot_be_judged(tmp_path: Path) -> None:
    lab = SmallLab(tmp_path)
    lab.answers = {"before": 1, "after": 100}
    lab.train(frozen=False)
    strict = bind(parse_plan({**PLAN, "frozen_late": "cannot judge"}, "test"), [lab.dataset])
    lab.evaluate()
    run = lab._run("evaluate", {"base": str(lab.base), "after_adapter": str(lab.trained.file("adapter"))})
    freeze_for_run(strict, run, tmp_path, lab.ledger)
    for name in ("before.jsonl", "after.jsonl", "conditions.json", "summary.json"):
        run.file(name).write_bytes(lab.run.file(name).read_bytes())
    verdict = judge(run, lab.ledger)
    assert verdict.verdict == "CANNOT JUDGE" and "before the training" in verdict.problems[0].text
    assert verdict.label == "CANNOT JUDGE"


def test_a_plan_of_the_default_rule_keeps_its_hash_and_its_bytes(tmp_path: Path) -> None:
    plan = parse_plan(PLAN, "test")
    assert "frozen_late" not in plan.value()
    assert parse_plan({**PLAN, "frozen_late": "counts"}, "test").sha256 == plan.sha256
    strict = parse_plan({**PLAN, "frozen_late": "cannot judge"}, "test")
    assert strict.sha256 != plan.sha256
    frozen = freeze_for_lab(strict, tmp_path, Ledger(tmp_path / "ledger.jsonl"))
    assert "cannot judge" in to_json(strict.value()) and frozen.sha256 == strict.sha256
    assert all("frozen_late" not in load_plan(name).value() for name in plan_names())
