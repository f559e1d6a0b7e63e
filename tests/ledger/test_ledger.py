"""Sealing and freezing: every later edit shows, and names its file."""

import json
import multiprocessing
from pathlib import Path

import pytest

from vlmconsole.jobs import closing
from vlmconsole.ledger.chain import STAGED, Ledger
from vlmconsole.ledger.freezing import FrozenError, digest, freeze, read_frozen
from vlmconsole.runs.folder import RunFolder


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.jsonl")


def make(tmp_path: Path) -> RunFolder:
    run = RunFolder.create(tmp_path / "runs", kind="k", preset="p", spec={}, title="t", home=tmp_path)
    run.append_jsonl("samples.jsonl", {"n": 1})
    run.log.write_text("line\n")
    (run.path / "adapter").mkdir()
    run.file("adapter/weights.bin").write_bytes(b"\0" * 100)
    return run


def test_a_sealed_run_is_intact_and_every_edit_names_its_file(tmp_path: Path, ledger: Ledger) -> None:
    run = make(tmp_path)
    assert ledger.verify(run).status == "not sealed"
    ledger.seal(run)
    assert ledger.verify(run).status == "intact"
    with run.log.open("a") as file:
        file.write("said at exit\n")  # a log may grow
    run.write_json("stop.json", {"state": "cancelled"})  # an order that came too late
    assert ledger.verify(run).status == "intact"
    run.file("adapter/weights.bin").write_bytes(b"\0" * 99 + b"\1")
    verdict = ledger.verify(run)
    assert verdict.status == "changed" and verdict.changed == ("adapter/weights.bin",)
    run.file("adapter/weights.bin").unlink()
    verdict = ledger.verify(run)
    assert verdict.status == "missing" and verdict.missing == ("adapter/weights.bin",)
    run.file("extra.txt").write_text("x")
    assert ledger.verify(run).added == ("extra.txt",)


def test_a_rewritten_log_a_rewritten_manifest_and_a_removed_folder_show(tmp_path: Path, ledger: Ledger) -> None:
    run = make(tmp_path)
    ledger.seal(run)
    run.log.write_text("lime\n")
    assert ledger.verify(run).changed == ("log.txt",)
    manifest = json.loads(run.file("manifest.json").read_text())
    del manifest["files"]["log.txt"]
    run.write_json("manifest.json", manifest)
    assert ledger.verify(run).changed == ("manifest.json",)
    run.file("manifest.json").unlink()
    assert ledger.verify(run).missing == ("manifest.json",)
    run.path.rename(tmp_path / "away")
    assert ledger.verify(run).status == "missing"


@pytest.mark.parametrize("edit", ["value", "drop", "swap", "insert"])
def test_an_edited_chain_is_broken_at_that_line(ledger: Ledger, edit: str) -> None:
    for number in range(5):
        ledger.append("note", run=f"r{number}")
    assert ledger.read().broken is None
    lines = ledger.path.read_text().splitlines()
    if edit == "value":
        lines[2] = lines[2].replace("r2", "rX")
    elif edit == "drop":
        del lines[2]
    elif edit == "swap":
        lines[2], lines[3] = lines[3], lines[2]
    else:
        lines.insert(2, lines[1])
    ledger.path.write_text("\n".join(lines) + "\n")
    assert "line 3" in (ledger.read().broken or "")


def test_a_line_torn_by_a_crash_is_harmless_and_a_damaged_one_is_not(ledger: Ledger) -> None:
    ledger.append("note", run="a")
    with ledger.path.open("ab") as file:
        file.write(b'{"seq": 2, "kind": "no')
    entry = ledger.append("note", run="b")
    chain = ledger.read()
    assert entry["seq"] == 2 and chain.broken is None and chain.torn == (2,)
    ledger.path.write_bytes(ledger.path.read_bytes().replace(b'"run":"a"', b'"run":"a', 1))
    assert ledger.read().broken is not None


def test_a_cut_off_end_shows_by_the_run_that_is_in_no_line(tmp_path: Path, ledger: Ledger) -> None:
    run = make(tmp_path)
    ledger.append("note", run="first")
    ledger.seal(run)
    ledger.path.write_text(ledger.path.read_text().splitlines()[0] + "\n")
    assert ledger.read().broken is None
    assert ledger.verify(run).status == "changed" and "no ledger entry" in ledger.verify(run).why


def test_long_entries_are_found_from_the_end(ledger: Ledger) -> None:
    ledger.append("note", text="x" * 200_000)
    assert ledger.append("note", text="y")["seq"] == 2
    assert ledger.read().broken is None


def _append(path: str, count: int) -> None:
    for number in range(count):
        Ledger(Path(path)).append("note", n=number)


def test_many_writers_make_one_chain(ledger: Ledger) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_append, args=(str(ledger.path), 25)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    chain = ledger.read()
    assert chain.broken is None and [entry["seq"] for entry in chain.entries] == list(range(1, 101))


def test_a_rule_is_frozen_before_the_first_sample_and_never_edited(tmp_path: Path, ledger: Ledger) -> None:
    run = RunFolder.create(tmp_path / "runs", kind="k", preset="p", spec={}, title="t", home=tmp_path)
    rule = {"limit": 0.85, "group": "regular", "n": 64}
    frozen = freeze(run, "plan.json", rule, ledger)
    assert frozen.sha256 == digest(dict(reversed(rule.items()))) and frozen.value == rule
    assert run.file("plan.json").read_bytes() == b'{"group":"regular","limit":0.85,"n":64}'
    run.append_jsonl("samples.jsonl", {"n": 1})
    assert freeze(run, "plan.json", rule, ledger).t == frozen.t  # the same again changes nothing
    with pytest.raises(FrozenError, match="never edited"):
        freeze(run, "plan.json", rule | {"limit": 0.80}, ledger)
    with pytest.raises(FrozenError, match="before the first"):
        freeze(run, "rule.json", rule, ledger)
    assert read_frozen(run, "plan.json", ledger).value == rule
    run.file("plan.json").write_bytes(b'{"group":"regular","limit":0.8,"n":64}')
    with pytest.raises(FrozenError, match="changed after freezing"):
        read_frozen(run, "plan.json", ledger)
    run.file("plan.json").unlink()
    with pytest.raises(FrozenError, match="missing"):
        read_frozen(run, "plan.json", ledger)
    with pytest.raises(FrozenError, match="never frozen"):
        read_frozen(run, "other.json", ledger)
    with pytest.raises(ValueError):
        freeze(run, "nan.json", {"limit": float("nan")}, ledger)


def cut_short(ledger: Ledger, run: RunFolder, *, line: bool, staged: bool = False) -> None:
    """As a death between the manifest and its line leaves it (an earlier version's order), or between line and name."""
    run.set_state("done")
    ledger.seal(run)
    if not line:
        ledger.path.write_text("")
    if staged:
        run.file("manifest.json").rename(run.file(STAGED))


def bury(run: RunFolder) -> None:
    assert closing.bury(run, "lost", "the worker was ended by SIGKILL") == ("done", None)


@pytest.mark.parametrize("how", ["manifest without its line", "line without its manifest", "neither"])
def test_a_seal_cut_short_by_a_death_is_finished_by_whoever_buries(tmp_path: Path, ledger: Ledger, how: str) -> None:
    run = make(tmp_path)
    cut_short(ledger, run, line=how.startswith("line"), staged=how.startswith("line"))
    if how == "neither":
        run.file("manifest.json").unlink()
    if how.startswith("line"):
        assert ledger.verify(run).status == "intact"  # the line proves the staged bytes
    with run.log.open("a") as file:
        file.write("last words of a child\n")
    bury(run)
    bury(run)
    assert ledger.verify(run).status == "intact" and not run.file(STAGED).exists()
    assert len([entry for entry in ledger.read().entries if entry["kind"] == "sealed"]) == 1


@pytest.mark.parametrize("how", ["edited", "added", "removed", "manifest", "line, edited", "line, no manifest"])
def test_finishing_a_seal_never_covers_an_edit(tmp_path: Path, ledger: Ledger, how: str) -> None:
    run = make(tmp_path)
    cut_short(ledger, run, line=how.startswith("line"), staged=how == "line, edited")
    if "edited" in how:
        run.file("adapter/weights.bin").write_bytes(b"\1" * 100)
    elif how == "added":
        run.file("more.txt").write_text("x")
    elif how == "removed":
        run.file("samples.jsonl").unlink()
    elif how == "manifest":
        run.file("manifest.json").write_bytes(run.file("manifest.json").read_bytes() + b" ")
    else:
        run.file("manifest.json").unlink()
    lines = len(ledger.read().entries)
    bury(run)
    assert ledger.verify(run).status in ("changed", "missing") and len(ledger.read().entries) == lines
