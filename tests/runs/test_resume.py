"""Where a retry resumes, from the files of a run."""

from __future__ import annotations

from pathlib import Path

from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.resume import resume_point


def a_run(home: Path, name: str, **more: object) -> RunFolder:
    return RunFolder.create(home / "runs", kind="sft", preset=name, spec={}, title=name, home=home, name=name, **more)


def test_the_nearest_attempt_that_left_something_counts(tmp_path: Path) -> None:
    first = a_run(tmp_path, "first")
    assert resume_point(first) == ""
    first.file("checkpoint.pt").write_bytes(b"x")
    assert resume_point(first) == "a checkpoint", "without its note the step is not known"
    first.write_json("checkpoint.json", {"sha256": "0", "step": 350})
    assert resume_point(first) == "step 350"
    second = a_run(tmp_path, "second", earlier=str(first.path))
    assert resume_point(second) == "step 350"
    second.append_jsonl("before.jsonl", {"id": "a"}, {"id": "b"})
    second.append_jsonl("after.jsonl", {"id": "a"})
    assert resume_point(second) == "3 answers"


def test_damaged_and_circular_notes_say_nothing_false(tmp_path: Path) -> None:
    run = a_run(tmp_path, "round")
    run.write_json("job.json", {**run.job(), "earlier": str(run.path)})
    assert resume_point(run) == ""
    run.file("checkpoint.pt").write_bytes(b"x")
    run.file("checkpoint.json").write_text('{"step": "many"}')
    assert resume_point(run) == "a checkpoint"
