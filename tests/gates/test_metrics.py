"""A metric is one class: what is defined here is judged, shown and reported without another line anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from judged import N, plan, right, write_run

from vlmconsole.desks.gates import GateDesk
from vlmconsole.gates.figures import figures
from vlmconsole.gates.junit import junit
from vlmconsole.gates.measures import Measures
from vlmconsole.gates.metrics import METRICS, PERCENT, Metric, register
from vlmconsole.gates.plan import Plan, PlanError
from vlmconsole.gates.samples import Case, Sample
from vlmconsole.gates.verdict import Verdict, judge
from vlmconsole.ledger.chain import Ledger
from vlmconsole.reports import judged as report
from vlmconsole.reports.parts import Table
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.screens.gates.rows import GateRows


@pytest.fixture
def brevity() -> Iterator[None]:
    @register
    class Brevity(Metric):
        """Share of answers of at most twenty characters."""

        name = "brevity"
        title = "short answers"
        form = PERCENT

        def sides(self, measures: Measures) -> tuple[Fraction, Fraction]:
            before = sum(_short(case.before) for case in measures.cases)
            after = sum(_short(case.after) for case in measures.cases)
            return Fraction(before, measures.n), Fraction(after, measures.n)

        def deciding(self, case: Case) -> tuple[float, ...]:
            return (-len(case.after.answer or ""),)

    yield
    del METRICS["brevity"]


def _short(sample: Sample) -> bool:
    return len(sample.answer or "") <= 20


def _plan(limit: float) -> Plan:
    return plan(gates=[{"group": "naming", "metric": "brevity", "at_least": limit}])


def _run(home: Path, limit: float) -> tuple[RunFolder, Verdict]:
    answers = right(N, {"naming": 9})  # the tenth says “nothing of the kind”, 19 characters
    run = write_run(home, _plan(limit), answers, lambda group, number, row: answers(group, number, row) * 2)
    return run, judge(run, Ledger(home / "ledger.jsonl"))


def test_a_metric_of_one_class_goes_from_plan_to_report(brevity: None, tmp_path: Path) -> None:
    run, verdict = _run(tmp_path, 0.95)
    (gate,) = verdict.gates
    assert (gate.gate.name, gate.limit_text, gate.verdict) == ("naming: short answers", "≥ 95 %", "FAIL")
    value = gate.to_json()
    assert (value["metric"], value["limit"], value["sign"], value["unit"]) == ("brevity", 0.95, ">=", "share")
    assert (value["before"], value["after"], value["measured"]) == (1.0, 0.9, 0.9)
    shown = {"before": "100.0 %", "after": "90.0 %", "measured": "90.0 %", "margin": "−5.0", "interval": ""}
    assert figures(gate) == shown
    rows = GateRows(id="rows")
    rows.items = (gate,)
    assert "short answers" in rows.line(0, 120).plain and "90.0 %" in rows.line(0, 120).plain
    desk = GateDesk(Places(tmp_path))
    (entry,) = [one for one in desk.listing() if one.kind == "run"]
    first = desk.open(entry).deciding(gate.gate)[0]
    assert first.after.answer == "nothing of the kind" * 2, "its own pictures come first"
    told = junit(verdict)
    assert b"naming: short answers" in told and "limit ≥ 95 %".encode() in told
    assert "naming: short answers" not in " ".join(verdict.claims.may)
    tables = [part for section in report.sections(run, Places(tmp_path), pictures=False) for part in section.parts]
    table = next(part for part in tables if isinstance(part, Table) and part.title.startswith("Gates"))
    remark = "within one image of the limit"
    assert table.rows == [["naming: short answers", "≥ 95 %", *shown.values(), "FAIL", remark]]


def test_a_new_metric_leaves_the_hash_of_other_plans_and_is_refused_when_it_is_gone(brevity: None) -> None:
    known = _plan(0.5).value()
    assert known["gates"] == [{"group": "naming", "metric": "brevity", "at_least": 0.5, "at_most": None, "above": None}]
    with pytest.raises(PlanError, match="a gate on brevity needs exactly the limit at_least"):
        plan(gates=[{"group": "naming", "metric": "brevity", "at_most": 0.5}])
    held = METRICS.pop("brevity")
    with pytest.raises(PlanError, match="input should be 'all_correct'"):
        _plan(0.5)
    METRICS["brevity"] = held
