"""`vlmconsole audit`: exit codes, the JSON contract, what a person reads; and the job of the same name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from audited import SmallLab, lines_of, write_lines
from refusals import refused

from vlmconsole.cli import main
from vlmconsole.jobs import audit as job
from vlmconsole.jobs.contract import Context, JobError
from vlmconsole.ledger.chain import Ledger
from vlmconsole.runs.folder import RunFolder


def call(capsys: pytest.CaptureFixture[str], home: Path, *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main(["--home", str(home), "audit", *words])
    said = capsys.readouterr()
    return int(left.value.code or 0), said.out, said.err


def test_exit_codes_json_and_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    home = tmp_path / "home"
    lab = SmallLab(home).whole()
    code, out, err = call(capsys, home, "evaluate", "--json")
    value = json.loads(out)
    assert code == 0 and value["verdict"] == "PASS" and value["counts"]["wrong"] == 0
    assert json.loads(Path(value["path"]).read_text())["run"] == lab.run.name == value["run"]
    assert "mini:train" in err, "progress goes to stderr"
    entry = lab.ledger.read().entries[-1]
    assert (entry["kind"], entry["run"], entry["verdict"]) == ("audit", lab.run.name, "PASS")
    lines = lines_of(lab.run, "after.jsonl")
    write_lines(lab.run, "after.jsonl", [{**lines[0], "reward": 0.5}, *lines[1:]])
    code, out, _ = call(capsys, home, lab.run.name)
    assert code == 1 and out.startswith("FAIL  ")
    listed = out.splitlines()[1:]
    assert listed[0].startswith("✗ ") and "✗ scores: 1 wrong" in out and "✗ seal: 1 wrong" in out
    assert [line[0] for line in listed if line[0] in "✗✓"] == sorted(
        (line[0] for line in listed if line[0] in "✗✓"), key="✗✓".index
    ), "what is wrong comes first"


def test_what_cannot_be_audited_or_replayed_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "home"
    lab = SmallLab(home)
    lab.train()
    lab.evaluate()
    other = RunFolder.create(lab.places.runs, kind="bench", preset="bench", spec={}, title="", home=home)
    for words, code, said in (
        ((other.name,), 2, "only trainings and evaluations are audited"),
        (("nothing",), 2, "no run"),
        (("a", "b"), 2, "Give one run"),
        ((lab.run.name, "--alone"), 2, "belong to `audit replay RUN`"),
        (("replay", lab.run.name, "--sample", "nowhere"), 3, "has no sample 'nowhere'"),
        (("replay", other.name), 3, "holds no answers"),
        ((lab.run.name,), 3, ""),
    ):
        got, out, err = call(capsys, home, *words)
        assert got == code and said in err, (words, got, err)
        assert "Traceback" not in err + out


def test_the_job_audits_the_newest_evaluation(tmp_path: Path) -> None:
    lab = SmallLab(tmp_path / "home")
    spec = job.AuditSpec()
    run = RunFolder.create(lab.places.runs, kind="audit", preset="audit", spec={}, title="", home=lab.places.home)
    with refused("run-missing", "evaluation", error=JobError):
        job.run(Context(run, lab.places), spec)
    lab.whole()
    summary = job.run(Context(run, lab.places), spec)
    assert summary["run"] == lab.run.name and summary["verdict"] == "PASS" and summary["wrong"] == 0
    assert run.read_json("audit.json")["verdict"] == "PASS"
    assert Ledger(lab.places.ledger).verify(lab.run).status == "intact", "the audited run is not written to"
    again = job.run(Context(run, lab.places), job.AuditSpec(replay=True))  # of a base that is no model to be loaded
    assert again["verdict"] == "PASS" and again["replay"].startswith("not possible: "), "the audit stands without it"
    assert any("not replayed" in str(event.get("text")) for event in run.read_jsonl("events.jsonl"))
