"""Plans frozen before the training: taken by hash or file, refused once anything changed, late ones told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomlkit
from audited import LAYER, PLAN, SmallLab
from refusals import mentions, refused

from vlmconsole.audit.evaluation import audit_freezing
from vlmconsole.audit.images import Shelves
from vlmconsole.audit.lineage import audit_parents, audit_replay
from vlmconsole.data.findings import Finding
from vlmconsole.evaluation.resolve import base_of, resolve
from vlmconsole.evaluation.settings import EvaluateSettings
from vlmconsole.gates.binding import bind, bound_plan, freeze_for_lab, freeze_for_run
from vlmconsole.gates.evidence import check_conditions
from vlmconsole.gates.frozen import changed_plans, is_frozen, read_frozen_plan
from vlmconsole.gates.plan import Plan, PlanError, parse_plan
from vlmconsole.gates.trained import Freezing, freezing
from vlmconsole.gates.verdict import judge
from vlmconsole.jobs.contract import Context
from vlmconsole.jobs.freeze import KIND, FreezeSpec
from vlmconsole.ledger.freezing import FrozenError
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.text.times import about
from vlmconsole.training.adapters.provenance import read_provenance, weights_sha256, write_provenance


@pytest.fixture
def lab(tmp_path: Path) -> SmallLab:
    return SmallLab(tmp_path / "home")


def plan_for(name: str, datasets: list[Path], before: str, places: Places, base: str | None = None) -> Plan:
    """The plan that an evaluation with that before is judged by."""
    named = resolve(EvaluateSettings(data=["mini"], plan=name, before_adapter=before, after_adapter="a"), places)
    assert named.plan is not None
    return bound_plan(named.plan, is_frozen(name), datasets, named.before.adapter.identity, base)


def frozen_by_job(lab: SmallLab, folder: Path) -> dict[str, Any]:
    """The summary of a real freeze job."""
    path = folder / "mini-plan.toml"
    path.write_text(tomlkit.dumps(PLAN))
    run = RunFolder.create(lab.places.runs, kind="freeze", preset="f", spec={}, title="f", home=lab.places.home)
    spec = FreezeSpec(plan=str(path), data=["mini"], limits=["repair-15-tiny"])
    return KIND.run(Context(run, lab.places), spec)


def test_the_plan_frozen_by_the_job_is_taken_by_hash_by_its_beginning_and_by_file(
    lab: SmallLab, tmp_path: Path
) -> None:
    told = frozen_by_job(lab, tmp_path)
    assert told["pictures"] == 6 and set(told["limits"]) == {"mini-plan", "repair-15-tiny"}
    copy = tmp_path / "copied.json"
    shutil.copyfile(told["path"], copy)
    for name in (told["frozen"], told["frozen"][:12], told["path"], str(copy)):
        assert is_frozen(name)
        assert plan_for(name, [lab.dataset], "", lab.places, told["base_sha256"]).sha256 == told["frozen"]
    # The same plan by its name is bound anew, to the same hash: nothing was chosen in between.
    again = plan_for(str(tmp_path / "mini-plan.toml"), [lab.dataset], "", lab.places, base_of(""))
    assert again.sha256 == told["frozen"]


def test_a_frozen_plan_is_refused_once_it_its_data_or_its_before_changed(lab: SmallLab, tmp_path: Path) -> None:
    told = frozen_by_job(lab, tmp_path)
    with refused("plan-unfrozen", "0123456789ab", error=FrozenError):
        plan_for("0123456789ab", [lab.dataset], "", lab.places)

    with refused("before-differs", "base", "some-adapter", error=PlanError):  # frozen for the base: for nothing else
        plan_for(told["frozen"], [lab.dataset], "some-adapter", lab.places)

    path = Path(told["path"])
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"at_least":0.5', b'"at_least":0.1'))
    for name in (told["frozen"], str(path)):
        with refused("plan-changed", path.name, error=FrozenError):
            plan_for(name, [lab.dataset], "", lab.places)
    (changed,) = changed_plans(lab.places.home, lab.ledger.read())
    assert path.name in changed and "was changed" in changed
    path.write_bytes(whole)
    assert changed_plans(lab.places.home, lab.ledger.read()) == []

    lab.remake("test-regular", lambda rows: [rows[1], rows[0], *rows[2:]])
    with refused("dataset-changed", "mini", "mini-plan", error=PlanError):
        plan_for(told["frozen"], [lab.dataset], "", lab.places)
    path.unlink()
    with refused("plan-missing", path.name, error=FrozenError):
        read_frozen_plan(told["frozen"], lab.places.home, lab.ledger)


def test_a_frozen_plan_that_names_what_it_compares_with_takes_no_other(lab: SmallLab) -> None:
    plan = bind(parse_plan(PLAN, "test"), [lab.dataset], before_adapter="one sha256:aa")
    frozen = freeze_for_lab(plan, lab.places.home, lab.ledger)
    with refused("before-differs", "sha256:aa", "base", error=PlanError):
        plan_for(frozen.sha256, [lab.dataset], "", lab.places)


def audited(lab: SmallLab) -> dict[str, Finding]:
    return {one.name: one for one in audit_freezing(lab.run, lab.ledger.read(), lab.trained)}


def test_a_plan_frozen_after_the_training_began_is_named_and_an_earlier_one_said(lab: SmallLab) -> None:
    lab.train(frozen=False)
    freeze_for_lab(parse_plan(PLAN, "test"), lab.places.home, lab.ledger)
    lab.evaluate()
    late = audited(lab)["plan before training"]
    assert late.state == "wrong" and mentions(late.text, "after", lab.trained.name)
    stands = freezing(lab.run, lab.places, lab.ledger.read().entries[-1]["t"])
    assert stands is not None and stands.late


def test_a_plan_frozen_before_is_said_to_be(lab: SmallLab) -> None:
    lab.train()
    lab.evaluate()
    good = audited(lab)["plan before training"]
    assert good.state == "ok" and mentions(good.text, "before", lab.trained.name)


def test_the_training_chose_by_the_rule_that_the_plan_names(lab: SmallLab) -> None:
    lab.train()
    rule = {"split": "dev", "metric": "mean reward", "tie": "the earlier epoch"}
    for epochs, state in (([1, 2], "ok"), ([2], "wrong")):
        run = lab._run("evaluate", {"after_adapter": str(lab.trained.file("adapter"))})
        plan = parse_plan({**PLAN, "selection": {**rule, "epochs": {"mini": epochs}}}, "test")
        freeze_for_run(bind(plan, [lab.dataset]), run, lab.places.home, lab.ledger)
        lab.run = run
        assert audited(lab)["selection rule of the plan"].state == state


@pytest.mark.parametrize(("scorer", "state"), [("counting", "ok"), ("naming", "wrong")])
def test_the_scorer_that_the_plan_selects_by_is_the_training_s(lab: SmallLab, scorer: str, state: str) -> None:
    lab.train()
    rule = lab.trained.read_json("selection.json")
    lab.trained.write_json("selection.json", {**rule, "scorers": ["counting/1"]})
    chosen = {"epochs": {"mini": [1, 2]}, "scorer": scorer}
    run = lab._run("evaluate", {"after_adapter": str(lab.trained.file("adapter"))})
    freeze_for_run(
        bind(parse_plan({**PLAN, "selection": chosen}, "test"), [lab.dataset]), run, lab.places.home, lab.ledger
    )
    lab.run = run
    assert audited(lab)["selection rule of the plan"].state == state


def test_how_long_before_and_after_for_people() -> None:
    assert mentions(Freezing("r", 100.0, 820.0).text, "12 min", "before", "r")
    late = Freezing("r", 820.0, 100.0, 60.0)
    assert late.late and mentions(late.text, "not before", "limits", "40 s")
    assert [about(value) for value in (3, 89.4, 90, 7200)] == ["3 s", "89 s", "2 min", "2.0 h"]


def test_each_round_starts_from_the_adapter_that_the_one_before_chose(lab: SmallLab) -> None:
    first = lab.train()
    assert audit_parents(first, lab.places) == []
    second = lab.train()
    shutil.copytree(first.file("adapter"), second.file("start"), dirs_exist_ok=True)
    origin = read_provenance(second.file("adapter"))
    assert origin is not None
    parent = weights_sha256(first.file("adapter"))
    lab.adapter("adapter", {LAYER.format("A"): np.full((2, 4), 7.0), LAYER.format("B"): np.ones((4, 2))})
    write_provenance(second.file("adapter"), type(origin)(**{**vars(origin), "parent_sha256": parent}))
    (found,) = audit_parents(second, lab.places)
    assert (found.state, f"{second.name} from {first.name}" in found.text) == ("ok", True)

    lab.adapter("start", {LAYER.format("A"): np.zeros((2, 4)), LAYER.format("B"): np.zeros((4, 2))})
    (found,) = audit_parents(second, lab.places)
    assert found.state == "wrong" and mentions(found.text, second.name, "start")
    shutil.rmtree(first.file("adapter"))
    (found,) = audit_parents(second, lab.places)
    assert found.state == "not verifiable" and "no training" in found.text


def test_replayed_pictures_are_drawn_again_by_the_seed(lab: SmallLab) -> None:
    from vlmconsole.data.dataset import make_dataset
    from vlmconsole.data.recipe import Recipe

    fresh = {"group": "regular", "low": 0, "high": 0, "count": 1}
    parts = [fresh, {"replay": "mini:train", "count": 2}]
    recipe = {"name": "later", "title": "t", "seed": 3, "splits": [{"name": "train", "role": "train", "parts": parts}]}
    folder = make_dataset(Recipe.model_validate(recipe), lab.places.datasets)
    assert audit_replay(Shelves(lab.places.datasets), "mini") == []
    (found,) = audit_replay(Shelves(lab.places.datasets), "later")
    assert (found.state, found.name) == ("ok", "later: replay") and "2 of mini:train" in found.text

    manifest = json.loads((folder / "manifest.json").read_text())
    taken = {entry[1] for entry in manifest["splits"]["train"]["pictures"]}
    other = next(row for row in lab.rows("train") if row.sha256 not in taken)
    replayed = next(entry for entry in manifest["splits"]["train"]["pictures"] if entry[3])
    replayed[1:3] = [other.sha256, other.pixel_sha256]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (found,) = audit_replay(Shelves(lab.places.datasets), "later")
    assert found.state == "wrong" and mentions(found.text, "mini:train", "1")


def test_a_plan_bound_to_a_base_takes_no_other_and_one_frozen_without_takes_any(lab: SmallLab) -> None:
    base, other = weights_sha256(lab.base), "b" * 64
    plan = bind(parse_plan(PLAN, "test"), [lab.dataset], base_sha256=base)
    frozen = freeze_for_lab(plan, lab.places.home, lab.ledger)
    assert plan_for(frozen.sha256, [lab.dataset], "", lab.places, base).sha256 == frozen.sha256
    with refused("before-differs", f"{base[:12]}…", "bbbbbbbbbbbb…", error=PlanError):
        plan_for(frozen.sha256, [lab.dataset], "", lab.places, other)
    with refused("before-differs", "weights", "not", error=PlanError):
        plan_for(frozen.sha256, [lab.dataset], "", lab.places, None)
    old = freeze_for_lab(bind(parse_plan(PLAN, "test"), [lab.dataset]), lab.places.home, lab.ledger)
    assert plan_for(old.sha256, [lab.dataset], "", lab.places, other).base_sha256 is None


def test_the_freeze_job_binds_the_base_and_before_knows_which_one_it_stands_on(lab: SmallLab, tmp_path: Path) -> None:
    (tmp_path / "mini-plan.toml").write_text(tomlkit.dumps(PLAN))
    told = {}
    for base in (str(lab.base), "unbound"):
        run = RunFolder.create(lab.places.runs, kind="freeze", preset="f", spec={}, title="f", home=lab.places.home)
        spec = FreezeSpec(plan=str(tmp_path / "mini-plan.toml"), data=["mini"], base=base)
        told[base] = KIND.run(Context(run, lab.places), spec)["base_sha256"]
    assert told == {str(lab.base): weights_sha256(lab.base), "unbound": None}

    def settings(**more: Any) -> EvaluateSettings:
        return EvaluateSettings(data=["mini"], after_adapter="a", **more)

    for kind in ({"base": str(lab.base)}, {"before_model": str(lab.base), "base": "elsewhere"}):
        assert resolve(settings(**kind), lab.places).before.weights_sha256 == weights_sha256(lab.base)
    bundled = base_of("")
    assert resolve(settings(backend="server", server="demo"), lab.places).before.weights_sha256 == bundled
    assert resolve(settings(backend="server", server="openai"), lab.places).before.weights_sha256 is None


def test_the_base_of_before_is_judged_as_well(lab: SmallLab) -> None:
    base = weights_sha256(lab.base)
    lab.train()
    lab.evaluate()
    conditions = lab.run.read_json("conditions.json")
    for plan_base, before, after, nouns in (
        (base, base, base, ()),
        (
            base,
            "b" * 64,
            "b" * 64,
            ("before", "m", "bbbbbbbbbbbb…", f"{base[:12]}…"),
        ),
        (base, None, None, ("weights", "not known")),
        (None, base, base, ()),
        (None, base, "b" * 64, ("after", "another base")),
    ):
        plan = parse_plan(PLAN, "test").model_copy(update={"base_sha256": plan_base})
        for side, sha in (("before", before), ("after", after)):
            conditions[side] = {**conditions[side], "model": "m", "model_sha256": sha}
        conditions["after"]["adapter"] = "one"
        lab.run.write_json("conditions.json", conditions)
        wrong = [text for text in check_conditions(lab.run, plan) if "base" in text]
        assert (mentions(wrong[0], *nouns) and len(wrong) == 1) if nouns else not wrong
    assert any(mentions(remark, "base not bound") for remark in judge(lab.run, lab.ledger).remarks)
