"""The audit and the replay on runs of the real jobs: frozen, trained, evaluated, and the adapter changed afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from refusals import mentions, refused

from vlmconsole.audit.replay import choose_sample, replay
from vlmconsole.audit.replay_errors import ReplayError
from vlmconsole.audit.run import audit
from vlmconsole.ledger.chain import Ledger
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places

pytestmark = pytest.mark.slow

RECIPE = """
name = "mini"
title = "a dataset to audit"
seed = 11
[[splits]]
name = "train"
role = "train"
parts = [{ group = "regular", low = 0, high = 2, every = 1 }]
[[splits]]
name = "dev"
role = "dev"
parts = [{ group = "regular", low = 0, high = 2, count = 4 }]
[[splits]]
name = "test-regular"
role = "test"
parts = [{ group = "regular", low = 0, high = 3, count = 6 }]
"""
PLAN = """
title = "a plan to audit"
whose = "the tests' own"
before = "the base"
trained = [0, 2]
pictures = "synthetic shapes"
resamples = 99
conditions = { temperature = 0.0, max_tokens = 24 }
[data]
recipes = ["mini"]
[generations]
evaluation = 12
development = 8
[seeds]
training = [1]
[[groups]]
name = "regular"
split = "test-regular"
n = 6
scorer = "counting"
[[gates]]
group = "regular"
metric = "all_correct"
at_least = 0.1
"""


def ran(places: Places, module: Any, spec: dict[str, Any]) -> RunFolder:
    """A run of a real job, in this process, sealed as the worker seals it."""
    from vlmconsole.jobs.contract import Context

    kind = module.KIND
    run = RunFolder.create(places.runs, kind=kind.name, preset=kind.name, spec=spec, title=kind.name, home=places.home)
    run.set_state("running")
    run.write_json("summary.json", kind.run(Context(run, places), kind.spec.model_validate(spec)))
    run.set_state("done")
    Ledger(places.ledger).seal(run)
    return run


def test_real_runs_hold_and_an_answer_is_the_same_again(tmp_path: Path) -> None:
    """About 20 s of one quiet core. What the jobs write is what the audit reads; the replay is in the same batch."""
    pytest.importorskip("peft")
    from vlmconsole.jobs import evaluate, freeze, sft

    places = Places(home=tmp_path / "home").ensure()
    recipe, plan = tmp_path / "mini.toml", tmp_path / "mini-plan.toml"
    recipe.write_text(RECIPE)
    plan.write_text(PLAN)
    teaching = {"data": str(recipe), "epochs": 2, "dev_epochs": [1, 2], "shown": 1, "warm_up": 2}
    frozen = ran(places, freeze, {"plan": str(plan), "data": [str(recipe)]}).read_json("summary.json")["frozen"]
    trained = ran(places, sft, teaching)
    asking = {"data": ["mini"], "after_adapter": trained.name, "plan": frozen, "batch": 4, "threads": 1}
    run = ran(places, evaluate, {**asking, "max_new_tokens": 24})
    for one in (trained, run):
        result = audit(one, places)
        assert result.verdict == "PASS", [f.text for f in result.findings if f.state != "ok"]
    assert any(mentions(f.text, "before", trained.name) for f in result.findings)
    assert "tokenized anew" in next(f.text for f in result.findings if f.name == "supervision mask")

    sample = choose_sample(run)
    done = replay(run, places, sample, alone=True)
    assert not done.differs and done.members in (2, 4) and done.alone_same is not None
    assert not replay(run, places, sample, side="before").differs
    with refused("sample-missing", "no such picture", error=ReplayError):
        replay(run, places, "no such picture")

    path = trained.file("adapter/adapter_model.safetensors")
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)
    found = {f.name for f in audit(run, places).findings if f.state == "wrong"}
    assert {"evaluated weights", "final adapter", "seal"} <= found
    with refused("evidence-changed", error=ReplayError):
        replay(run, places, sample)
    lines = run.file("after.jsonl").read_text().splitlines()
    hidden = [json.dumps({**json.loads(line), "token_ids": None}) for line in lines]
    run.file("after.jsonl").write_text("\n".join(hidden) + "\n")
    with refused("answer-served", error=ReplayError):
        replay(run, places, sample)
