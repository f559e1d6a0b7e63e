"""Faults planted in the data and in the training of a lab, one at a time: the audit names each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from audit_faults import (
    DATA,
    TRAINING,
    a_combination_left_out,
    another_adapter_becomes_the_final_one,
    other_data_than_is_said,
)
from audited import Change, SmallLab, wrong

from vlmconsole.audit.run import audit
from vlmconsole.data.dataset import manifest_digest, read_manifest
from vlmconsole.ledger.freezing import freeze
from vlmconsole.runs.folder import RunFolder
from vlmconsole.training.selection import SelectionRule


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "name", "said"), DATA, ids=[f"{one[0].__name__}-{one[1]}" for one in DATA])
def test_a_fault_of_the_data_is_named(tmp_path: Path, plant: Change, name: str, said: str) -> None:
    """The manifest agrees with what was made, so hashes show nothing: pixels and places do."""
    lab = SmallLab(tmp_path / "home")
    plant(lab)
    if plant is a_combination_left_out:
        manifest = json.loads((lab.dataset / "manifest.json").read_text())
        manifest["splits"]["train"]["n"] -= 1
        (lab.dataset / "manifest.json").write_text(json.dumps(manifest))
    lab.whole()
    result = audit(lab.run, lab.places)
    assert result.verdict == "FAIL"
    assert said in wrong(result).get(name, ""), wrong(result)
    assert "mini: hashes" not in wrong(result)


@pytest.mark.parametrize(("epochs", "said"), [((1, 2), ""), ((2, 1), "another rule than"), (None, "first step")])
def test_a_killed_training_that_went_on_is_no_fault_unless_its_rule_came_late(
    tmp_path: Path, epochs: tuple[int, ...] | None, said: str
) -> None:
    """The first step is the first attempt's, and so is the freezing that it is held against."""
    lab = SmallLab(tmp_path / "home")
    lab.freeze()
    first = RunFolder.create(lab.places.runs, kind="sft", preset="sft", spec={}, title="", home=lab.places.home)
    if epochs is not None:
        digest, dev = manifest_digest(read_manifest(lab.dataset)), tuple(row.uid for row in lab.rows("dev"))
        freeze(first, "selection.json", SelectionRule("mini", digest, "dev", dev, epochs, 64).to_json(), lab.ledger)
    first.events.metric("loss", 1.0, step=1)
    first.set_state("lost")
    lab.ledger.seal(first)
    run = lab.train(frozen=False)
    run.write_json("job.json", {**run.job(), "earlier": str(first.path)})
    lab.evaluate()
    lab.finish()
    found = wrong(audit(run, lab.places))
    assert set(found) == ({"selection rule frozen"} if said else set()), found
    assert said in found.get("selection rule frozen", "")


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "name", "said"), TRAINING, ids=[one[0].__name__ for one in TRAINING])
def test_a_fault_of_the_training_is_named(tmp_path: Path, plant: Change, name: str, said: str) -> None:
    lab = SmallLab(tmp_path / "home")
    lab.train()
    plant(lab)
    lab.evaluate()
    lab.finish()
    result = audit(lab.trained, lab.places)
    assert result.verdict == "FAIL"
    assert said in wrong(result).get(name, ""), wrong(result)
    # Two faults are seen from a second side as well.
    also = {another_adapter_becomes_the_final_one: "weight change", other_data_than_is_said: "mini: identity"}
    assert set(wrong(result)) <= {name, also.get(plant, name)}, "it is named for what it is, and nothing else is"
    assert said in wrong(audit(lab.run, lab.places)).get(name, ""), "the evaluation's audit takes the training in"
