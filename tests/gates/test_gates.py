"""Verdicts: exact limits, and every kind of missing, altered or unlike evidence named for what it is."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import judged
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judged import CONDITIONS, WRONG, N, lines_of, plan, right, small_dataset, write_lines, write_run
from refusals import mentions, refused

from vlmconsole.data.rows import Row
from vlmconsole.gates.binding import bind, freeze_for_lab, freeze_for_run, record
from vlmconsole.gates.measures import exact, paired
from vlmconsole.gates.metrics import METRICS
from vlmconsole.gates.plan import Gate, PlanError
from vlmconsole.gates.samples import Sample, read_side
from vlmconsole.gates.verdict import Verdict, judge
from vlmconsole.ledger.chain import Ledger
from vlmconsole.ledger.freezing import FrozenError
from vlmconsole.runs.folder import RunFolder
from vlmconsole.scoring.intervals import paired_interval

BEFORE, AFTER = right(9, {"hollow": 2}), right(9, {"hollow": 9})


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return write_run(tmp_path_factory.mktemp("lab"), plan(), BEFORE, AFTER)


@pytest.fixture
def run(clean: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of the clean run's whole lab, to be tampered with."""
    home = clean.path.parent.parent
    shutil.copytree(home, tmp_path / "lab")
    return RunFolder(tmp_path / "lab" / "runs" / clean.name)


def judge_it(run: RunFolder) -> Verdict:
    return judge(run, Ledger(run.path.parent.parent / "ledger.jsonl"))


DROP = METRICS["partial_drop"].title


def by_name(verdict: Verdict) -> dict[str, str]:
    return {one.gate.name: one.verdict for one in verdict.gates}


def alter(run: RunFolder, name: str, change: Callable[[list[dict[str, Any]]], Any]) -> None:
    lines = lines_of(run, name)
    change(lines)
    write_lines(run, name, lines)


def said(verdict: Verdict) -> str:
    return " | ".join(f"{p.group}: {p.text}" for p in verdict.problems)


def check_problem(verdict: Verdict, *nouns: str) -> None:
    """One of the verdict's problems holds every noun."""
    assert any(mentions(problem.text, *nouns) for problem in verdict.problems), (nouns, said(verdict))


# --- whole and sound ---
def test_a_sound_run_passes_and_says_when_its_limits_were_frozen(run: RunFolder) -> None:
    verdict = judge_it(run)
    assert (verdict.verdict, verdict.problems) == ("PASS", ())
    assert verdict.frozen is not None and verdict.frozen.limits is not None
    assert verdict.frozen.limits <= verdict.frozen.t
    hollow = next(one for one in verdict.gates if one.gate.metric == "partial_gain_ci_low")
    assert hollow.interval is not None and hollow.measured == hollow.interval[0] > 0
    assert verdict.measures is not None
    assert (verdict.measures["hollow"].flips.wins, verdict.measures["hollow"].flips.losses) == (7, 0)
    assert verdict.measures["hollow"].flips.p == pytest.approx(2 * 0.5**7)


def test_the_json_form_has_what_scripts_rely_on(run: RunFolder) -> None:
    value = json.loads(json.dumps(judge_it(run).to_json(), allow_nan=False))
    assert value["verdict"] == "PASS"
    assert all({"name", "limit", "measured", "interval", "margin", "verdict"} <= set(gate) for gate in value["gates"])


@pytest.mark.parametrize(
    ("n_right", "expected"), [(8, "PASS"), (7, "FAIL")], ids=["equal to the limit passes", "one picture under fails"]
)
def test_all_correct_limits_are_inclusive(tmp_path: Path, n_right: int, expected: str) -> None:
    answers = right(9, {"regular": n_right, "hollow": 9})
    verdict = judge_it(write_run(tmp_path, plan(), right(n_right, {"hollow": 2, "naming": 9}), answers))
    gate = verdict.gates[0] if expected == "FAIL" else next(g for g in verdict.gates if g.gate.metric == "all_correct")
    assert (gate.verdict, verdict.verdict) == (expected, expected)
    assert (
        any(mentions(remark, "one image", "limit") for remark in gate.remarks)
        if expected == "PASS"
        else gate.margin == pytest.approx(-0.1)
    )


def test_a_drop_of_exactly_the_limit_passes_and_a_larger_one_fails(tmp_path: Path) -> None:
    def half_less(group: str, number: int, row: Row) -> str:
        if group == "regular" and number == 0:  # one of two counts wrong: 0.5 of 10 pictures is 5 points
            counts = json.loads(row.truth)
            return json.dumps({**counts, "red_circles": counts["red_circles"] + 1})
        return right(N)(group, number, row)

    exactly = judge_it(write_run(tmp_path / "a", plan(), right(N, {"hollow": 2}), half_less))
    drop = next(one for one in exactly.gates if one.gate.name == f"regular: {DROP}")
    assert (drop.measured, drop.margin, drop.verdict) == (5.0, 0.0, "PASS")
    more = judge_it(write_run(tmp_path / "b", plan(), right(N, {"hollow": 2}), right(9, {"hollow": N, "naming": N})))
    assert by_name(more)[f"regular: {DROP}"] == "FAIL"
    assert more.gates[0].verdict == "FAIL"  # failing first


def test_no_gain_is_no_pass_on_a_lower_bound(tmp_path: Path) -> None:
    verdict = judge_it(write_run(tmp_path, plan(), right(9), right(9)))
    assert by_name(verdict)[f"hollow: {METRICS['partial_gain_ci_low'].title}"] == "FAIL"
    assert verdict.gates[0].measured == 0.0


def test_a_guard_whose_base_is_under_its_floor_cannot_be_judged(tmp_path: Path) -> None:
    low = right(9, {"hollow": 2, "naming": 7})
    verdict = judge_it(write_run(tmp_path, plan(), low, right(9, {"hollow": 9})))
    assert by_name(verdict)[f"naming: {DROP}"] == "CANNOT JUDGE"
    assert verdict.verdict == "CANNOT JUDGE"
    assert "0.8" in verdict.gates[0].why and "0.7" in verdict.gates[0].why


def test_one_failed_gate_fails_the_whole_although_another_cannot_be_judged(tmp_path: Path) -> None:
    verdict = judge_it(write_run(tmp_path, plan(), right(2), right(2, {"hollow": 9})))
    assert by_name(verdict)[f"naming: {DROP}"] == "CANNOT JUDGE"
    assert verdict.verdict == "FAIL"


# --- missing, altered, unlike ---
def drop_first(lines: list[dict[str, Any]]) -> None:
    del lines[0]


def set_first(**fields: Any) -> Callable[[list[dict[str, Any]]], None]:
    return lambda lines: lines[0].update(fields)


OTHER = "0" * 64
# (file, change, the words that must name the fault); the first sample is of the group regular
FAULTS: dict[str, tuple[str, Callable[[list[dict[str, Any]]], Any], tuple[str, ...]]] = {
    "a sample is missing": ("after.jsonl", drop_first, ("after.jsonl", "9 samples")),
    "an answer was edited": ("after.jsonl", set_first(answer=WRONG), ("scores", "after.jsonl")),
    "a score was edited": ("before.jsonl", set_first(partial=0.5), ("scores", "before.jsonl")),
    "a truth was edited": ("after.jsonl", set_first(truth='{"red_circles": 9, "blue_squares": 9}'), ("truth",)),
    "another picture": ("after.jsonl", set_first(picture_sha256=OTHER), ("pairs", "the image:")),
    "other pixels": ("after.jsonl", set_first(pixel_sha256=OTHER), ("pairs", "pixels")),
    "another input tensor": ("after.jsonl", set_first(tensor_sha256=OTHER), ("pairs", "input tensor")),
    "no tensor on one side": ("after.jsonl", set_first(tensor_sha256=None), ("pairs", "input tensor")),
    "another question": ("after.jsonl", set_first(prompt_sha=OTHER), ("pairs", "question")),
    "a failed request": ("after.jsonl", set_first(http_ok=False, answer=None), ("requests", "after.jsonl", "failed")),
    "no answer": ("after.jsonl", set_first(answer=None), ("no answer",)),
    "unpaired ids": ("after.jsonl", set_first(id="somewhere-else"), ("only after", "somewhere-else")),
    "not in the plan": ("after.jsonl", set_first(id="somewhere-else"), ("images", "outside the plan")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_one_group_is_named_and_only_that_group_cannot_be_judged(run: RunFolder, fault: str) -> None:
    file, change, nouns = FAULTS[fault]
    alter(run, file, change)
    verdict = judge_it(run)
    check_problem(verdict, *nouns)
    assert verdict.verdict == "CANNOT JUDGE"
    names = by_name(verdict)
    if fault == "a sample is missing":  # fewer generations than promised concern the whole
        assert set(names.values()) == {"CANNOT JUDGE"}
    else:
        assert names["regular: all correct"] == "CANNOT JUDGE"
        assert names["hollow: partial reward"] == "PASS"


def test_a_picture_swapped_on_both_sides_is_not_the_frozen_one(run: RunFolder) -> None:
    for file in ("before.jsonl", "after.jsonl"):
        alter(run, file, set_first(picture_sha256=OTHER, pixel_sha256=OTHER))
    check_problem(judge_it(run), "samples", "image", "frozen")


def test_truth_and_score_edited_together_on_both_sides_are_not_the_frozen_truth(run: RunFolder) -> None:
    for file in ("before.jsonl", "after.jsonl"):
        alter(run, file, set_first(truth=WRONG, answer=WRONG, valid=True, all_correct=True, partial=1.0, reward=1.0))
    check_problem(judge_it(run), "samples", "truth", "frozen")


WHOLE: dict[str, tuple[Callable[[RunFolder], Any], tuple[str, ...]]] = {
    "no plan": (lambda run: run.file("plan.json").unlink(), ("no plan.json",)),
    "an unreadable plan": (lambda run: run.file("plan.json").write_text("{"), ("cannot be read",)),
    "a softened limit": (
        lambda run: run.file("plan.json").write_text(run.file("plan.json").read_text().replace("0.8", "0.5")),
        ("changed", "freezing"),
    ),
    "one side missing": (lambda run: run.file("before.jsonl").unlink(), ("before.jsonl", "missing")),
    "an empty side": (lambda run: run.file("after.jsonl").write_text(""), ("no sample",)),
    "a torn line": (lambda run: run.file("after.jsonl").open("a").write('{"id": "x", '), ("no JSON",)),
    "a NaN score": (lambda run: alter(run, "after.jsonl", set_first(partial=float("nan"))), ("partial",)),
    "an id twice": (lambda run: alter(run, "after.jsonl", lambda lines: lines.append(lines[0])), ("twice",)),
    "a strange group": (
        lambda run: alter(run, "after.jsonl", set_first(group="easy")),
        ("groups", "plan", "not"),
    ),
    "no conditions": (lambda run: run.file("conditions.json").unlink(), ("not", "conditions")),
    "another precision": (
        lambda run: run.write_json(
            "conditions.json", {"before": CONDITIONS, "after": {**CONDITIONS, "precision": "bf16"}}
        ),
        ("condition", "precision"),
    ),
    "another setting": (
        lambda run: run.write_json(
            "conditions.json",
            {"before": {**CONDITIONS, "settings": {"seed": 1}}, "after": {**CONDITIONS, "settings": {"seed": 2}}},
        ),
        ("setting seed",),
    ),
    "not the plan's": (
        lambda run: run.write_json(
            "conditions.json", {key: {**CONDITIONS, "max_tokens": 32} for key in ("before", "after")}
        ),
        ("max_tokens = 64",),
    ),
    "frozen too late": (lambda run: alter(run, "before.jsonl", set_first(t=1000.0)), ("after", "first sample")),
    "a broken ledger": (lambda run: edit_ledger(run), ("ledger", "broken")),
    "no ledger": (lambda run: (run.path.parent.parent / "ledger.jsonl").unlink(), ("never frozen",)),
}


def edit_ledger(run: RunFolder) -> None:
    path = run.path.parent.parent / "ledger.jsonl"
    path.write_text(path.read_text().replace('"t":1', '"t":2', 1))


@pytest.mark.parametrize("fault", WHOLE)
def test_a_fault_of_the_whole_leaves_no_gate_judged(run: RunFolder, fault: str) -> None:
    change, nouns = WHOLE[fault]
    change(run)
    verdict = judge_it(run)
    check_problem(verdict, *nouns)
    assert verdict.verdict == "CANNOT JUDGE"
    assert {one.verdict for one in verdict.gates} <= {"CANNOT JUDGE"}
    assert verdict.claims.may == ()


def test_a_sealed_run_changed_afterwards_is_named(run: RunFolder) -> None:
    ledger = Ledger(run.path.parent.parent / "ledger.jsonl")
    ledger.seal(run)
    assert judge_it(run).verdict == "PASS"
    alter(run, "after.jsonl", lambda lines: lines[0].update(batch=1))  # nothing that a score depends on
    verdict = judge_it(run)
    assert verdict.verdict == "CANNOT JUDGE"
    check_problem(verdict, "sealed", "after.jsonl")


def test_promised_development_samples_are_counted_where_they_lie(tmp_path: Path) -> None:
    promised = plan(generations={"evaluation": 6 * N, "development": 4})
    run = write_run(tmp_path, promised, BEFORE, AFTER)
    verdict = judge_it(run)
    assert verdict.verdict == "PASS" and any("4 development samples" in remark for remark in verdict.remarks)
    write_lines(run, "dev-epoch1.jsonl", [{"id": 1}, {"id": 2}, {"id": 3}])
    check_problem(judge_it(run), "3 development samples", "4")


def test_limits_bound_to_pictures_must_be_the_ones_frozen_before(tmp_path: Path) -> None:
    home = tmp_path
    dataset = small_dataset(home)
    softer = [{**gate, **({"at_least": 0.1} if "at_least" in gate else {})} for gate in judged.PLAN["gates"]]
    forged = bind(plan(gates=softer), [dataset]).model_copy(update={"template_sha256": plan().sha256})
    run = write_run(home, forged, BEFORE, AFTER, bound=False)
    check_problem(judge_it(run), "other limits", "plan")


# --- freezing ---
def test_a_frozen_plan_is_never_replaced_and_a_late_one_is_refused(run: RunFolder, tmp_path: Path) -> None:
    ledger = Ledger(run.path.parent.parent / "ledger.jsonl")
    with refused("plan-frozen", run.name, error=FrozenError):
        freeze_for_run(plan(title="another"), run, tmp_path, ledger)
    late = RunFolder.create(tmp_path / "runs", kind="evaluate", preset="late", spec={}, title="", home=tmp_path)
    late.append_jsonl("before.jsonl", {"id": 1})
    with refused("freezing-late", "before.jsonl", error=FrozenError):
        freeze_for_run(plan(), late, tmp_path, ledger)


def test_a_plan_frozen_for_the_lab_counts_for_a_run_that_carries_it(run: RunFolder, tmp_path: Path) -> None:
    home = run.path.parent.parent
    ledger = Ledger(home / "ledger.jsonl")
    frozen = freeze_for_lab(plan(name="elsewhere"), home, ledger)
    assert freeze_for_lab(plan(name="elsewhere"), home, ledger).sha256 == frozen.sha256
    twin = home / "runs" / "twin"
    shutil.copytree(run.path, twin)
    shutil.copy(frozen.path, twin / "plan.json")
    for name in ("before.jsonl", "after.jsonl"):
        alter(RunFolder(twin), name, lambda lines: [line.update(t=frozen.t + 1) for line in lines])
    verdict = judge_it(RunFolder(twin))
    assert (verdict.verdict, verdict.plan.name if verdict.plan else "") == ("PASS", "elsewhere")
    shutil.copy(frozen.path, run.file("plan.json"))  # but a run with its own frozen plan cannot take another
    check_problem(judge_it(run), "changed", "freezing")


def test_verdicts_are_kept_once_each(run: RunFolder) -> None:
    ledger = Ledger(run.path.parent.parent / "ledger.jsonl")
    assert record(judge_it(run), run, ledger) and not record(judge_it(run), run, ledger)
    alter(run, "after.jsonl", set_first(answer=WRONG))
    assert record(judge_it(run), run, ledger)
    kinds = [entry["verdict"] for entry in ledger.read().entries if entry["kind"] == "verdict"]
    assert kinds == ["PASS", "CANNOT JUDGE"]


def test_binding_wants_the_right_recipe_tests_only_and_unchanged_files(tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path)
    with refused("dataset-differs", "other", error=PlanError):
        bind(plan(data={"recipes": ["other"]}), [dataset])
    groups = [{**group, "split": "train"} for group in judged.PLAN["groups"]]
    with refused("split-untested", "train", error=PlanError):
        bind(plan(groups=groups), [dataset])
    groups = [{**group, "n": 4} for group in judged.PLAN["groups"]]
    with refused("size-differs", "10 images", "4", error=PlanError):
        bind(plan(groups=groups, generations={"evaluation": 24}), [dataset])
    with (dataset / "test-regular.parquet").open("ab") as file:
        file.write(b"x")
    with refused("dataset-changed", "test-regular.parquet", error=PlanError):
        bind(plan(), [dataset])


# --- arithmetic ---
@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=2, max_size=40), st.integers(0, 100))
def test_a_limit_that_is_met_exactly_passes_and_anything_less_fails(thirtieths: list[int], hundredths: int) -> None:
    """Soft scores are multiples of 1/30: their exact mean decides, however the binary sums come out."""
    total = Fraction(sum(thirtieths), 30 * len(thirtieths))
    assert sum((exact(k / 30) for k in thirtieths), Fraction(0)) / len(thirtieths) == total
    gate = Gate(group="g", metric="partial", at_least=hundredths / 100)
    assert gate.passes(total) is (total >= Fraction(hundredths, 100))
    assert gate.passes(gate.exact_limit) and not gate.passes(gate.exact_limit - Fraction(1, 10**9))
    above = Gate(group="g", metric="partial_gain_ci_low", above=hundredths / 100)
    assert not above.passes(above.exact_limit) and above.passes(above.exact_limit + Fraction(1, 10**9))
    drop = Gate(group="g", metric="partial_drop", at_most=float(hundredths))
    assert drop.passes(Fraction(hundredths)) and not drop.passes(Fraction(hundredths) + Fraction(1, 10**9))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 0.5, 1.0])), min_size=2, max_size=30))
def test_measures_agree_with_themselves_whatever_the_scores(pairs: list[tuple[float, float]]) -> None:
    def side(column: int) -> list[Sample]:
        fields = {key: OTHER for key in ("picture_sha256", "pixel_sha256", "prompt_sha")}
        return [
            Sample(
                id=str(i), group="g", answer="", truth="", valid=True, all_correct=pair[column] == 1.0,
                partial=pair[column], reward=pair[column], t=0.0, **fields,
            )
            for i, pair in enumerate(pairs)
        ]  # fmt: skip

    measures = paired(side(0), side(1), interval=partial(paired_interval, resamples=plan().resamples))
    drop = Gate(group="g", metric="partial_drop", at_most=5.0)
    gained = measures.partial[1] - measures.partial[0]
    assert drop.definition.value(measures) == -100 * gained
    assert float(gained) == pytest.approx(measures.interval.difference)
    assert measures.interval.low <= measures.interval.difference + 1e-12
    assert measures.flips.wins - measures.flips.losses == measures.n * (
        measures.all_correct[1] - measures.all_correct[0]
    )
    for gate in (drop, Gate(group="g", metric="all_correct", at_least=0.5)):
        value = gate.definition.value(measures)
        assert gate.passes(value) is (gate.margin(value) >= 0)


def test_a_gain_of_binary_noise_is_no_gain(clean: RunFolder) -> None:
    measured = judge_it(clean).measures
    assert measured is not None
    gate = Gate(group="hollow", metric="partial_gain_ci_low", above=0.0)
    real = measured["hollow"]
    noise = replace(real, interval=replace(real.interval, low=5.6e-17))
    assert gate.passes(gate.definition.value(real)) and not gate.passes(gate.definition.value(noise))


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_reading_a_side_never_breaks_and_never_guesses(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "after.jsonl"
        path.write_bytes(data)
        side = read_side(path)
    assert side.samples == {} and side.problems


def test_a_sample_line_reads_back_as_written(clean: RunFolder) -> None:
    side = read_side(clean.file("before.jsonl"))
    assert len(side.samples) == 3 * N and not side.problems
    line = lines_of(clean, "before.jsonl")[0]
    assert side.samples[line["id"]].model_dump()["token_ids"] == tuple(line["token_ids"])
