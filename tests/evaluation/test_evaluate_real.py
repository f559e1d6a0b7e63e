"""Evaluation of the bundled model for real: killed and resumed, and the same base through two backends."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from examples import imported, several
from refusals import mentions, refused

from vlmconsole.audit.replay import choose_sample, replay
from vlmconsole.audit.replay_errors import ReplayError
from vlmconsole.compare.runs import compare
from vlmconsole.engines.profile import save_profile
from vlmconsole.evaluation.agreement import agreement
from vlmconsole.evaluation.settings import EvaluateSettings
from vlmconsole.gates.binding import freeze_for_run
from vlmconsole.gates.plan import parse_plan
from vlmconsole.gates.verdict import judge
from vlmconsole.jobs.contract import Context
from vlmconsole.jobs.evaluate import KIND
from vlmconsole.jobs.launch import create_run, start_worker
from vlmconsole.jobs.presets import load_preset, overlay
from vlmconsole.ledger.chain import Ledger
from vlmconsole.runs.conditions import Conditions
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.servers.server import Ready

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def lines(run: RunFolder, side: str) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k not in ("t", "seconds")} for line in run.read_jsonl(f"{side}.jsonl")]


def random_adapter(folder: Path) -> Path:
    """A language-side adapter with random matrices: it changes answers, and is the better for nothing."""
    torch = pytest.importorskip("torch")
    from vlmconsole.training import bases, lora, model
    from vlmconsole.training.adapters import store
    from vlmconsole.training.adapters.provenance import Provenance, write_provenance

    base = bases.base_folder("")
    loaded = model.load(base)
    adapted = lora.inject(loaded.model, seed=3)
    dice = torch.Generator().manual_seed(5)
    for name, value in adapted.named_parameters():
        if "lora_B" in name:
            value.data = torch.randn(value.shape, generator=dice) * 0.05
    adapted.save_pretrained(folder)
    origin = Provenance("sft", bases.BUNDLED, store.base_sha256(base), "float32", 8, 16, {}, "none")
    write_provenance(folder, origin)
    return folder


def test_killed_in_both_sides_and_resumed_it_is_the_run_that_was_never_killed(tmp_path: Path) -> None:
    places = Places(tmp_path).ensure()
    random_adapter(places.adapters / "random")
    preset = load_preset("eval-groups-tiny", places)
    sets = ["paired=true", "after_adapter=random", "batch=4", "threads=1", 'groups=["regular", "high"]', "limit=6"]
    spec = overlay(preset, sets)

    def attempt(earlier: RunFolder | None, kill_at: int | None) -> RunFolder:
        run = create_run(places, preset, spec, earlier)
        worker = start_worker(run)
        while worker.poll() is None:
            have = sum(1 for side in ("before", "after") for _ in run.read_jsonl(f"{side}.jsonl"))
            if kill_at is not None and have >= kill_at:
                os.killpg(worker.pid, signal.SIGKILL)
            time.sleep(0.01)
        return run

    whole = attempt(None, None)
    assert whole.state()["state"] == "done", whole.log.read_text()
    first = attempt(None, 4)
    second = attempt(first, 16)
    third = attempt(second, None)
    assert [run.state()["state"] for run in (first, second, third)] == ["running", "running", "done"]
    taken = third.read_json("summary.json")["taken_over"]
    assert taken == sum(1 for side in ("before", "after") for _ in second.read_jsonl(f"{side}.jsonl")) >= 16
    for side in ("before", "after"):
        assert lines(third, side) == lines(whole, side)
        made = [(line["id"], line["t"]) for line in third.read_jsonl(f"{side}.jsonl")]
        assert {(line["id"], line["t"]) for line in second.read_jsonl(f"{side}.jsonl")} <= set(made)
        assert len({i for i, _ in made}) == len(made) == 12
    assert third.read_json("summary.json")["same_answers"] < 12  # the adapter really took part


def test_conversations_are_the_same_prompts_through_two_backends(tmp_path: Path, mlx_server: Ready) -> None:
    """Images within a text, text alone, earlier turns and a system prompt: a server counts the tokens that are asked
    in this process, sees every image, and is asked again by a replay.
    """
    places = Places(tmp_path).ensure()
    imported(places.datasets, "mixed", {"test": ("test", several("test", 10))})
    key_file = str(mlx_server.profile.access.key_file)
    shared = {"name": "shared", "launch": None, "api_key_file": key_file}
    save_profile(places.servers, mlx_server.profile.model_copy(update=shared))
    runs = []
    for more in ({"threads": 1}, {"backend": "server", "server": "shared", "concurrency": 3}):
        spec = EvaluateSettings.model_validate({"data": ["mixed"], "paired": False, "max_new_tokens": 8, **more})
        run = RunFolder.create(
            places.runs, kind="evaluate", preset="mixed", spec=spec.model_dump(mode="json"), title="t", home=tmp_path
        )
        summary = KIND.run(Context(run, places), spec)
        assert (summary["n"], summary["http_failures"]) == (12, 0)
        runs.append(run)
    here, there = ({line["id"]: line for line in run.read_jsonl("before.jsonl")} for run in runs)
    for name, line in there.items():
        assert line["prompt_tokens"] == here[name]["prompt_tokens"], name
        images = {"test-1": 2, "test-2": 0, "test-3#2": 2, "test-6": 2, "test-7": 0, "test-8#2": 2}.get(name, 1)
        assert line["sight"] == (", ".join(["equal"] * images) or None), name
    assert agreement(*runs).share >= 0.9, agreement(*runs).sentence()
    done = replay(runs[1], places, "test-3#2", side="before", ask_server=True)
    assert not done.differs
    done = replay(runs[0], places, "test-1", side="before")
    assert not done.differs and done.kept == ()


def test_one_base_through_two_backends_agrees_and_is_still_not_paired(tmp_path: Path, mlx_server: Ready) -> None:
    places = Places(tmp_path).ensure()
    key_file = str(mlx_server.profile.access.key_file)
    shared = {"name": "shared", "launch": None, "api_key_file": key_file}
    save_profile(places.servers, mlx_server.profile.model_copy(update=shared))
    common = {"data": ["naming", "eval-groups-tiny"], "paired": False, "groups": ["naming", "regular"]}
    runs = []
    for more in ({"threads": 1}, {"backend": "server", "server": "shared", "concurrency": 4}):
        spec = EvaluateSettings.model_validate({**common, **more})
        run = RunFolder.create(
            places.runs, kind="evaluate", preset="agree", spec=spec.model_dump(mode="json"), title="t", home=tmp_path
        )
        summary = KIND.run(Context(run, places), spec)
        assert (summary["n"], summary["http_failures"]) == (76, 0)
        runs.append(run)
    found = agreement(*runs)
    assert found.n == 76 and found.share >= 0.98, found.sentence()
    assert any("engine is" in text for text in found.unlike)

    sample = choose_sample(runs[1], "before")  # the server asked again says the same, in the same company
    done = replay(runs[1], places, sample, side="before", ask_server=True)
    assert not done.differs and done.kept == ("token_ids", "tensor_sha256") and done.members > 1
    with refused("answer-served", error=ReplayError):
        replay(runs[1], places, sample, side="before")  # a job starts no server for it
    job = runs[1].job()
    runs[1].write_json("job.json", {**job, "spec": {**job["spec"], "max_new_tokens": 5}})
    with refused("evidence-changed", "max_new_tokens", error=ReplayError):
        replay(runs[1], places, sample, side="before", ask_server=True)

    here, there = (run.read_json("conditions.json")["before"] for run in runs)
    unlike = compare(Conditions.model_validate(here), Conditions.model_validate(there))
    assert not unlike.comparable and "engine" in json.dumps(unlike.to_json()["differs"])

    pair = RunFolder.create(places.runs, kind="evaluate", preset="pair", spec={}, title="t", home=tmp_path)
    group = {"name": "naming", "split": "test-naming", "n": 64, "scorer": "naming"}
    plan = parse_plan(
        {
            "name": "agree",
            "title": "t",
            "whose": "the tests' own",
            "before": "the base",
            "trained": [0, 3],
            "pictures": "synthetic",
            "data": {"recipes": ["naming"]},
            "generations": {"evaluation": 128},
            "seeds": {"training": [1]},
            "groups": [group],
            "gates": [{"group": "naming", "metric": "partial_drop", "at_most": 5.0}],
        },
        "test",
    )
    ledger = Ledger(places.ledger)
    freeze_for_run(plan, pair, tmp_path, ledger)
    for side, run in zip(("before", "after"), runs, strict=True):
        kept = [line | {"t": time.time() + 1} for line in run.read_jsonl("before.jsonl") if line["group"] == "naming"]
        pair.append_jsonl(f"{side}.jsonl", *kept)
    pair.write_json("conditions.json", {"before": here, "after": there})
    verdict = judge(pair, ledger)
    assert verdict.verdict == "CANNOT JUDGE"
    assert any(mentions(p.text, "engine", "in-process", "mlx-vlm") for p in verdict.problems)
