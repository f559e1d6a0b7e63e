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

from vlmconsole.gates.audit import audit


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
