"""Faults planted in a lab, one at a time: the audit names each, and finds nothing in labs without one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from audit_faults import (
    DATA,
    TRAINING,
    a_development_picture_in_the_training,
    a_step_without_gradient,
    a_wrong_label,
    objects_listed_over_each_other,
    the_candidate_is_picked_by_the_test,
    the_prompt_is_taught,
)
from audited import Change, SmallLab, lines_of, write_lines, wrong
from refusals import check_nouns, mentions

from vlmconsole.audit.run import AuditError, audit, keep, other_base
from vlmconsole.cli import main
from vlmconsole.desks.gates import GateDesk, read_audit
from vlmconsole.gates.verdict import judge
from vlmconsole.ledger.freezing import find_frozen
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.training.adapters.provenance import weights_sha256

SLOW = pytest.mark.slow


@pytest.mark.parametrize(("seed", "after"), [(11, 3), pytest.param(12, 4, marks=SLOW), pytest.param(13, 0, marks=SLOW)])
def test_nothing_is_found_in_a_clean_lab(tmp_path: Path, seed: int, after: int) -> None:
    """Whether its gates pass or fail: an audit is about the evidence, not about the result."""
    lab = SmallLab(tmp_path / "home", seed)
    lab.answers["after"] = after
    lab.whole()
    result = audit(lab.run, lab.places)
    assert not wrong(result)
    assert result.verdict == "PASS"
    assert len(result.findings) >= 30
    assert audit(lab.trained, lab.places).verdict == "PASS"
    keep(result, lab.places)
    kept = read_audit(lab.places, lab.run.name)
    assert kept is not None and kept["verdict"] == "PASS"


# ── faults of the evaluation ───────────────────────────────────────────────────────────────────────────────────


def after_lines(lab: SmallLab, at: int, **fields: Any) -> None:
    lines = lines_of(lab.run, "after.jsonl")
    lines[at].update(fields)
    write_lines(lab.run, "after.jsonl", lines)


def another_tensor_after(lab: SmallLab) -> None:
    after_lines(lab, 0, tensor_sha256="e" * 64)


def a_lenient_score(lab: SmallLab) -> None:
    after_lines(lab, 3, all_correct=True, partial=1.0, reward=1.0)


def another_question_after(lab: SmallLab) -> None:
    after_lines(lab, 0, prompt_sha="f" * 64)


def another_picture_after(lab: SmallLab) -> None:
    row = lab.rows("dev")[0]
    after_lines(lab, 0, picture_sha256=row.sha256, pixel_sha256=row.pixel_sha256)


def the_plan_is_frozen_late(lab: SmallLab) -> None:
    for side in ("before", "after"):
        lines = lines_of(lab.run, f"{side}.jsonl")
        write_lines(lab.run, f"{side}.jsonl", [{**line, "t": line["t"] - 60} for line in lines])


def another_before(lab: SmallLab) -> None:
    sha = lab.run.read_json("summary.json")["after"]["adapter_sha256"]
    lab.run.write_json("summary.json", {"before": {"adapter_sha256": sha}, "after": {"adapter_sha256": sha}})


def another_adapter_than_is_said(lab: SmallLab) -> None:
    summary = lab.run.read_json("summary.json")
    lab.run.write_json("summary.json", {**summary, "after": {"adapter_sha256": "1" * 64}})


def a_picture_is_left_out(lab: SmallLab) -> None:
    write_lines(lab.run, "after.jsonl", lines_of(lab.run, "after.jsonl")[1:])


EVALUATION: list[tuple[Change, str, str]] = [
    (another_tensor_after, "input tensors", "other input tensor"),
    (a_lenient_score, "scores", "its answer gives 0"),
    (another_question_after, "pairs", "another question"),
    (another_picture_after, "test set", "another image"),
    (the_plan_is_frozen_late, "plan frozen", "first answer"),
    (another_before, "before", "base itself"),
    (another_adapter_than_is_said, "evaluated weights", "was evaluated"),
    (a_picture_is_left_out, "pairs", "one side"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "name", "said"), EVALUATION, ids=[one[0].__name__ for one in EVALUATION])
def test_a_fault_of_the_evaluation_is_named(tmp_path: Path, plant: Change, name: str, said: str) -> None:
    lab = SmallLab(tmp_path / "home")
    lab.train()
    lab.evaluate()
    plant(lab)
    lab.finish()
    result = audit(lab.run, lab.places)
    assert result.verdict == "FAIL"
    assert said in wrong(result).get(name, ""), wrong(result)
    assert "seal" not in wrong(result)


@pytest.mark.parametrize("there", [True, False])
def test_a_killed_evaluation_that_went_on_is_no_fault_unless_its_plan_came_late(tmp_path: Path, there: bool) -> None:
    """Answers that were taken over are older than the new attempt's freezing, and younger than the first one's."""
    lab = SmallLab(tmp_path / "home")
    lab.train()
    first = lab.evaluate()
    first.set_state("lost")
    lab.ledger.seal(first)
    run = lab.evaluate()
    frozen = [find_frozen(lab.ledger.read(), one.name, "plan.json") for one in (first, run)]
    assert frozen[0] is not None and frozen[1] is not None and frozen[0]["sha256"] == frozen[1]["sha256"]
    between = (frozen[0]["t"] + frozen[1]["t"]) / 2
    assert frozen[0]["t"] < between < frozen[1]["t"]
    for side in ("before", "after"):
        write_lines(run, f"{side}.jsonl", [{**line, "t": between} for line in lines_of(run, f"{side}.jsonl")])
    if there:
        run.write_json("job.json", {**run.job(), "earlier": str(first.path)})
    lab.finish()
    found = wrong(audit(run, lab.places))
    assert set(found) == (set() if there else {"plan frozen"}), found
    assert there or "first answer" in found["plan frozen"]


# ── tampering after the seal ───────────────────────────────────────────────────────────────────────────────────


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def the_plan(lab: SmallLab) -> None:
    edit(lab.run.file("plan.json"), '"at_least":0.5', '"at_least":0.2')


def a_sample(lab: SmallLab) -> None:
    edit(lab.run.file("after.jsonl"), '"all_correct": false', '"all_correct": true')


def a_picture(lab: SmallLab) -> None:
    path = lab.dataset / "test-regular.parquet"
    data = path.read_bytes()
    at = data.index(b"IDAT") + 40
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def the_adapter(lab: SmallLab) -> None:
    path = lab.trained.file("adapter/adapter_model.safetensors")
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)


def a_line_of_the_ledger(lab: SmallLab) -> None:
    edit(lab.places.ledger, '"kind":"verdict"', '"kind":"remark"')


def the_test_set(lab: SmallLab) -> None:
    shutil.rmtree(lab.places.datasets)
    SmallLab(lab.places.home.parent / "other", seed=12)
    shutil.copytree(lab.places.home.parent / "other" / "datasets", lab.places.datasets)


def the_development_samples(lab: SmallLab) -> None:
    lab.develop(1, 3)


TAMPERING: list[tuple[Change, set[str]]] = [
    (the_plan, {"plan frozen", "seal", "verdict"}),
    (a_sample, {"scores", "seal", "verdict"}),
    (a_picture, {"mini: hashes"}),
    (the_adapter, {"evaluated weights", "final adapter", "seal"}),
    (a_line_of_the_ledger, {"ledger"}),
    (the_test_set, {"test set", "samples", "mini: identity"}),
    (the_development_samples, {"development selection", "seal"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("tamper", "names"), TAMPERING, ids=[one[0].__name__ for one in TAMPERING])
def test_tampering_is_named(tmp_path: Path, tamper: Change, names: set[str]) -> None:
    lab = SmallLab(tmp_path / "home").whole()
    assert audit(lab.run, lab.places).verdict == "PASS"
    tamper(lab)
    result = audit(lab.run, lab.places)
    assert result.verdict == "FAIL"
    assert names <= set(wrong(result)), wrong(result)
    broken = lab.ledger.verify(lab.run).status in ("changed", "missing", "ledger broken")
    shown = broken or judge(lab.run, lab.ledger).problems or lab.ledger.verify(lab.trained).status == "changed"
    assert shown or names & {"mini: hashes", "mini: identity"}, "verify or check names it too"


def test_many_faults_at_once_are_each_named(tmp_path: Path) -> None:
    """The quick one: what the slow tests plant one at a time, in one lab."""
    data = (a_wrong_label, objects_listed_over_each_other, a_development_picture_in_the_training)
    training = (the_prompt_is_taught, the_candidate_is_picked_by_the_test, a_step_without_gradient)
    evaluation = (another_tensor_after, a_lenient_score, the_plan_is_frozen_late, another_before)
    lab = SmallLab(tmp_path / "home")
    for stage, plants in ((lab.train, data), (lab.evaluate, training), (lab.finish, evaluation)):
        for plant in plants:
            plant(lab)
        stage()
    lab.develop(1, 2)  # and one thing after the seal
    found = wrong(audit(lab.run, lab.places))
    planted = [
        (name, said) for plant, name, said in (*DATA, *TRAINING, *EVALUATION) if plant in data + training + evaluation
    ]
    missed = [name for name, said in planted if said not in found.get(name, "")]
    assert not missed, found
    assert "dev-epoch1.jsonl" in found["seal"]


def test_verify_names_data_and_audits_that_are_not_what_they_were(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What lies outside the sealed runs: each change is named, exit 1, and nothing once it is put back."""
    lab = SmallLab(tmp_path / "home").whole()
    kept = keep(audit(lab.run, lab.places), lab.places)

    def verified() -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main(["--home", str(lab.places.home), "verify", "--json"])
        return int(left.value.code or 0), json.loads(capsys.readouterr().out)

    code, value = verified()
    assert code == 0 and value["intact"] and not (value["plans"] or value["data"] or value["audits"])
    for path, change, kind, said in (
        (kept, lambda data: data.replace(b'"PASS"', b'"FAIL"', 1), "audits", "was changed"),
        (
            lab.dataset / "test-regular.parquet",
            lambda data: data[:-9] + b"x" + data[-8:],
            "data",
            "test-regular.parquet was",
        ),
        (
            lab.dataset / "manifest.json",
            lambda data: data.replace(b'"seed": 11', b'"seed": 12'),
            "data",
            "the frozen mini-plan",
        ),
    ):
        whole = path.read_bytes()
        path.write_bytes(change(whole))
        assert path.read_bytes() != whole
        code, value = verified()
        assert code == 1 and not value["intact"] and said in value[kind][0], (path, value)
        path.write_bytes(whole)
    opened = GateDesk(lab.places).open(next(one for one in GateDesk(lab.places).listing() if one.kind == "run"))
    assert opened.audit_altered == ""
    kept.write_bytes(kept.read_bytes().replace(b'"PASS"', b'"FAIL"', 1))
    opened = GateDesk(lab.places).open(opened.entry)
    assert "it was PASS" in opened.audit_altered
    kept.unlink()
    check_nouns(verified()[1]["audits"][0], "gone", "PASS")
    (kept.parent / "another.json").write_text("{}")
    assert any(mentions(text, "another", "ledger", "no") for text in verified()[1]["audits"])
    assert verified()[0] == 1


def test_a_newer_bundled_model_is_no_fault_of_an_older_run_and_a_changed_base_is(tmp_path: Path) -> None:
    lab = SmallLab(tmp_path / "home").whole()
    own = str(lab.base)
    assert other_base(own, weights_sha256(lab.base), "it answered with") is None
    assert other_base(str(tmp_path / "nowhere"), "a" * 64, "it answered with") is None
    newer, changed = other_base("", "a" * 64, "it answered with"), other_base(own, "a" * 64, "it answered with")
    assert newer is not None and newer.state == "not verifiable" and "program" in newer.text
    assert changed is not None and changed.state == "wrong" and "base was changed" in changed.text
    # The same training as if it stood on a bundled model that has been replaced: nothing of it is called wrong.
    job = lab.trained.job()
    lab.trained.write_json("job.json", {**job, "spec": {**job["spec"], "base": ""}})
    found = {one.name: one for one in audit(lab.run, lab.places).findings}
    assert {name for name, one in found.items() if one.state == "wrong"} == {
        "seal"
    }  # the job's own line was edited here
    assert found["base model"].state == "not verifiable" and "no tokenizer here" in found["supervision mask"].text
    # And an evaluation whose base was exchanged under its name.
    conditions = lab.run.read_json("conditions.json")
    lab.run.write_json("conditions.json", {s: {**c, "model_sha256": "a" * 64} for s, c in conditions.items()})
    assert "aaaaaaaaaaaa…" in wrong(audit(lab.run, lab.places))["evaluated base"]


# ── what is missing ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_missing_evidence_is_no_pass(tmp_path: Path) -> None:
    lab = SmallLab(tmp_path / "home").whole()
    shutil.rmtree(lab.dataset)
    result = audit(lab.trained, lab.places)
    assert result.verdict != "PASS"
    missing = {one.name for one in result.findings if one.state == "not verifiable"}
    assert {"mini: there", "supervision mask"} <= missing


def test_a_run_that_is_not_sealed_cannot_be_judged(tmp_path: Path) -> None:
    lab = SmallLab(tmp_path / "home")
    lab.train()
    lab.evaluate()
    result = audit(lab.run, lab.places)
    assert result.verdict == "CANNOT JUDGE"
    assert not wrong(result)


@pytest.mark.slow
def test_a_server_that_hides_its_tensors_is_no_fault(tmp_path: Path) -> None:
    lab = SmallLab(tmp_path / "home")
    lab.train()
    lab.evaluate()
    for side in ("before", "after"):
        lines = lines_of(lab.run, f"{side}.jsonl")
        write_lines(lab.run, f"{side}.jsonl", [{**line, "tensor_sha256": None} for line in lines])
    lab.finish()
    result = audit(lab.run, lab.places)
    assert result.verdict == "PASS"
    assert next(one.state for one in result.findings if one.name == "input tensors") == "not verifiable"


@pytest.mark.parametrize(
    ("kind", "now", "said"), [("sweep", "done", "only trainings"), ("evaluate", "running", "ended")]
)
def test_what_cannot_be_audited_is_refused_and_not_accused(tmp_path: Path, kind: str, now: str, said: str) -> None:
    places = Places(tmp_path).ensure()
    run = RunFolder.create(places.runs, kind=kind, preset="x", spec={}, title="X", home=places.home)
    run.write_json("plan.json", {"cells": []})  # sweeps freeze a plan as well
    run.set_state(now)
    with pytest.raises(AuditError, match=said):
        audit(run, places)
