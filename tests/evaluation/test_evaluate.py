"""Evaluation over real pictures with an answerer whose words are chosen: freezing, keeping, resuming, refusing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace as Namespace
from typing import Any

import judged
import pytest
from evaluated import Bench, KilledError, Scripted
from examples import conversation
from refusals import mentions, refused
from test_textvqa_data import many, write_shards

from vlmconsole.counting.questions import COUNT_PROMPT
from vlmconsole.data.names import ready
from vlmconsole.data.rows import DataError
from vlmconsole.engines.effective import EffectiveSettings
from vlmconsole.engines.profile import ServerProfile
from vlmconsole.engines.registry import find_engine
from vlmconsole.evaluation import local
from vlmconsole.evaluation.answerer import Stopping, Who
from vlmconsole.evaluation.items import choose, items_digest
from vlmconsole.evaluation.resolve import ResolvedSide, base_of, resolve
from vlmconsole.evaluation.run import EvaluationError
from vlmconsole.evaluation.served import served
from vlmconsole.evaluation.settings import EvaluateSettings
from vlmconsole.gates.verdict import judge
from vlmconsole.jobs.contract import Context
from vlmconsole.jobs.evaluate import KIND
from vlmconsole.measure.bench import MeasuredServer
from vlmconsole.measure.calibration.reference import Schedule, running
from vlmconsole.measure.inputs import picture
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def ids(run: RunFolder, side: str) -> list[str]:
    return [line["id"] for line in judged.lines_of(run, f"{side}.jsonl")]


def untimed(run: RunFolder) -> list[list[dict[str, Any]]]:
    lines = [judged.lines_of(run, f"{side}.jsonl") for side in ("before", "after")]
    return [[{k: v for k, v in line.items() if k != "t"} for line in side] for side in lines]


def test_stopped_within_a_batch_it_keeps_the_whole_ones_and_goes_on_from_there(bench: Bench) -> None:
    class Stopped(Scripted):
        def ask(self, items: Any) -> Any:
            if len(self.asked) >= 8:
                raise Stopping
            return super().ask(items)

    told: list[tuple[int, str]] = []
    run, evaluation = bench.attempt()
    evaluation.on_progress = lambda done, total, note: told.append((done, note))
    inner = evaluation.opener

    @contextmanager
    def opener(side: str) -> Iterator[Scripted]:
        with inner(side) as model:
            yield Stopped(side, model.facts, model.asked)

    evaluation.opener = opener
    with pytest.raises(Stopping):
        evaluation.answer()
    assert len(ids(run, "before")) == 8
    assert told[0][0] == 0 and mentions(told[0][1], "before", "model") and [done for done, _ in told[1:]] == [4, 8]
    again, evaluation = bench.attempt(earlier=run)
    evaluation.answer()
    assert len(set(ids(again, "before"))) == len(ids(again, "before")) and ids(again, "before")[:8] == ids(
        run, "before"
    )
    assert bench.asked.count(("before", ids(run, "before")[0])) == 1, "nothing is asked twice"


def test_both_sides_are_kept_whole_and_judged_by_the_plan_frozen_before(bench: Bench) -> None:
    wrong = frozenset(f"small-test-hollow-{n:05d}" for n in range(4))
    run, evaluation = bench.attempt(per_side=lambda side: {"wrong": wrong if side == "before" else frozenset()})
    summary = evaluation.answer()
    verdict = judge(run, bench.ledger)
    assert (verdict.verdict, verdict.problems) == ("PASS", ())
    assert summary["groups"]["hollow"]["before"]["all_correct"] == 0.6
    assert summary["groups"]["hollow"]["paired"]["wins"] == 4
    assert (summary["n"], summary["http_failures"], summary["same_answers"]) == (60, 0, 26)
    first = judged.lines_of(run, "after.jsonl")[0]
    assert first["prompt"] == COUNT_PROMPT
    assert first["token_ids"] == list(first["answer"].encode())
    assert (first["scorer"], first["batch"], first["finish"]) == ("counting/1", "regular-0", "stop")


@pytest.mark.parametrize(
    "after", [7, 41, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 1, 4, 29, 30, 31, 32, 59))]
)
def test_killed_anywhere_and_resumed_nothing_that_was_kept_is_measured_twice(bench: Bench, after: int) -> None:
    whole, evaluation = bench.attempt()
    evaluation.answer()
    bench.asked.clear()
    first, evaluation = bench.attempt(die_after=after)
    with pytest.raises(KilledError):
        evaluation.answer()
    kept = {("before", i) for i in ids(first, "before")} if first.file("before.jsonl").exists() else set()
    kept |= {("after", i) for i in ids(first, "after")} if first.file("after.jsonl").exists() else set()
    bench.asked.clear()
    # An attempt that ends before its first answer must not break the chain.
    empty = RunFolder.create(
        bench.home / "runs", kind="evaluate", preset="x", spec={}, title="", home=bench.home, earlier=str(first.path)
    )
    second, evaluation = bench.attempt(earlier=empty)
    summary = evaluation.answer()
    assert not kept & set(bench.asked)
    assert summary["taken_over"] == len(kept) == 60 - len(bench.asked)
    assert untimed(second) == untimed(whole)
    assert judge(second, bench.ledger).verdict == judge(whole, bench.ledger).verdict


def test_a_torn_line_costs_its_batch_once_more_and_only_the_missing_answer_is_written(bench: Bench) -> None:
    first, evaluation = bench.attempt()
    evaluation.answer()
    path = first.file("after.jsonl")
    path.write_bytes(path.read_bytes()[:-40])
    bench.asked.clear()
    second, evaluation = bench.attempt(earlier=first)
    assert evaluation.answer()["taken_over"] == 59
    last = [("after", i) for i in ids(second, "after")[-2:]]
    assert bench.asked == last  # the whole batch, as its members decide its padding
    assert untimed(second)[1] == untimed(second)[0]


def test_under_other_versions_everything_is_measured_anew_and_said(bench: Bench) -> None:
    first, evaluation = bench.attempt(die_after=20)
    with pytest.raises(KilledError):
        evaluation.answer()
    bench.asked.clear()
    _, evaluation = bench.attempt(earlier=first, facts={"backend": "in-process", "versions": {"torch": "2"}})
    assert evaluation.answer()["taken_over"] == 0
    assert len(bench.asked) == 60
    assert any("other conditions (versions)" in text and "anew" in text for text in bench.told)
    assert len(ids(first, "before")) == 20  # the earlier attempt stays as it was


def test_a_change_that_shows_only_after_the_first_side_sets_both_aside(bench: Bench) -> None:
    first, evaluation = bench.attempt(die_after=40)
    with pytest.raises(KilledError):
        evaluation.answer()
    bench.asked.clear()
    other = {"facts": {"backend": "in-process", "versions": {"torch": "1"}, "weights": "other"}}
    second, evaluation = bench.attempt(earlier=first, per_side=lambda side: other if side == "after" else {})
    evaluation.answer()
    assert len(bench.asked) == 60
    assert len(ids(second, "before")) == len(ids(second, "after")) == 30
    assert len(ids(second, "set-aside-before")) == 30


def test_only_model_and_adapter_may_differ_between_the_sides(bench: Bench) -> None:
    run, evaluation = bench.attempt(per_side=lambda side: {"settings": {"chunked-prefill-size": len(side)}})
    with refused("sides-differ", "chunked-prefill-size", "6", "5", error=EvaluationError):
        evaluation.answer()
    assert len(ids(run, "before")) == 30 and not run.file("after.jsonl").exists()


def test_a_failed_request_is_no_wrong_answer_and_a_retry_asks_it_again(bench: Bench) -> None:
    fails = frozenset({"small-test-regular-00003"})
    run, evaluation = bench.attempt(per_side=lambda side: {"fails": fails if side == "after" else frozenset()})
    summary = evaluation.answer()
    regular = summary["groups"]["regular"]["after"]
    assert (regular["n"], regular["answered"], regular["http_failures"], regular["all_correct"]) == (10, 9, 1, 1.0)
    assert summary["groups"]["regular"]["paired"]["n"] == 9
    line = next(one for one in judged.lines_of(run, "after.jsonl") if one["id"] in fails)
    assert (line["http_ok"], line["answer"], line["error"]) == (False, None, "the server said 503")
    regular_gates = [g for g in judge(run, bench.ledger).gates if g.gate.group == "regular"]
    assert {g.verdict for g in regular_gates} == {"CANNOT JUDGE"} and "failed" in regular_gates[0].why
    bench.asked.clear()
    second, evaluation = bench.attempt(earlier=run)
    assert evaluation.answer()["taken_over"] == 59
    assert ("after", "small-test-regular-00003") in bench.asked
    assert {g.verdict for g in judge(second, bench.ledger).gates if g.gate.group == "regular"} == {"PASS"}


def test_a_server_that_is_gone_ends_the_evaluation_instead_of_failing_every_picture(bench: Bench) -> None:
    every = frozenset(f"small-test-regular-{n:05d}" for n in range(10))
    run, evaluation = bench.attempt(facts={"backend": "server"}, fails=every, batch=1)
    with refused("requests-failed", "5 requests", "503", error=EvaluationError):
        evaluation.answer()
    assert len(ids(run, "before")) == 5


def test_one_side_alone_and_groups_by_name(bench: Bench) -> None:
    settings = EvaluateSettings(data=["small"], paired=False, groups=["hollow", "test-naming"], limit=3)
    items = choose(settings, [ready("small", bench.home / "datasets", say=bench.told.append)], None)
    assert [(i.group, i.scorer) for i in items] == [("hollow", "counting")] * 3 + [("naming", "naming")] * 3
    with refused("group-missing", "nosuch", error=DataError):
        choose(settings.model_copy(update={"groups": ["nosuch"]}), [bench.dataset], None)
    with refused("dataset-missing", "nosuch"):
        ready("nosuch", bench.home / "datasets")
    with refused("dataset-missing", "textvqa64"):
        ready("textvqa64", bench.home / "datasets")
    everything = choose(EvaluateSettings(data=["small"]), [bench.dataset], None)
    assert [i.group for i in everything] == ["regular"] * 10 + ["hollow"] * 10 + ["naming"] * 10
    assert items_digest(everything) != items_digest(everything[::-1])


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"plan": "sft-7-tiny", "limit": 4}, "limit"),
        ({"plan": "sft-7-tiny", "groups": ["regular"]}, "the plan itself"),
        ({"plan": "sft-7-tiny", "paired": False}, "paired"),
        ({"paired": False, "after_adapter": "x"}, "no after"),
        ({"backend": "server"}, "server profile"),
        ({"scorer": "guess"}, "no scorer"),
        ({"diagnostic": "sft-expand-tiny"}, "DATASET:SPLIT"),
        ({"nosuch": 1}, "Extra inputs"),
    ],
)
def test_settings_that_contradict_themselves_are_refused(spec: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        EvaluateSettings(data=["small"], **spec)


def test_the_job_judges_with_a_textvqa_group_made_from_shards(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [judged.PLAN["groups"][0], {"name": "textvqa", "split": "textvqa64", "n": 64, "scorer": "textvqa"}]
    gates = [judged.PLAN["gates"][0], {"group": "textvqa", "metric": "partial_drop", "at_most": 5.0}]
    table = {**judged.PLAN, "groups": groups, "gates": gates}
    table |= {"generations": {"evaluation": 148, "training_diagnostic": 4}}
    plan = tmp_path / "own.toml"
    plan.write_text(_toml(table))
    monkeypatch.setattr(local, "in_process", _scripted(bench))
    spec = EvaluateSettings(
        data=["small", "textvqa64"],
        plan=str(plan),
        textvqa=str(write_shards(tmp_path / "shards", many())),
        diagnostic="small:train",
        after_model="/nowhere",
    )
    run = RunFolder.create(tmp_path / "runs", kind="evaluate", preset="own", spec={}, title="t", home=tmp_path)
    summary = KIND.run(Context(run, Places(tmp_path)), spec)
    assert (summary["verdict"], summary["problems"]) == ("PASS", [])
    assert summary["groups"]["textvqa"]["after"]["partial"] == 1.0
    assert summary["scorers"][1].startswith("textvqa/1")
    assert (summary["diagnostic"]["n"], len(ids(run, "diagnostic"))) == (4, 4)
    assert [e["verdict"] for e in bench.ledger.read().entries if e["kind"] == "verdict"] == ["PASS"]
    assert [side for side, _ in bench.asked].count("diagnostic") == 0  # asked of the side under test
    assert len(bench.asked) == 2 * 74 + 4


def _scripted(bench: Bench) -> Any:
    @contextmanager
    def opener(side: ResolvedSide, stopping: Any) -> Iterator[Scripted]:
        yield Scripted(side.name, {"backend": "in-process"}, bench.asked, who=Who("scripted", base_of("")))

    return opener


def test_a_stop_is_heeded_while_a_server_still_writes(tmp_path: Path) -> None:
    example = conversation(("user", "<image>How many?"), images=[picture("stop", 0, 64, 64).data])
    asked = Namespace(id="one", example=example)
    slow = Schedule(role_ms=5, ttft_ms=50, itl_ms=500, tokens=64)  # half a minute an answer
    with running(slow) as server:
        profile = ServerProfile(name="slow", engine="openai", base_url=server.base_url, model="reference")
        there = MeasuredServer(profile, EffectiveSettings("openai"), "reference")
        began = time.monotonic()
        spec = EvaluateSettings(data=["small"], backend="server", server="slow", paired=False)
        side = served(resolve(spec, Places(tmp_path)).before, there, lambda: time.monotonic() - began > 0.5)
        with side as model, pytest.raises(Stopping):
            model.ask([asked])
    assert time.monotonic() - began < 10


def _toml(table: dict[str, Any]) -> str:
    import tomlkit

    return tomlkit.dumps(table)


def test_the_paired_server_changes_its_model_and_nothing_else(tmp_path: Path) -> None:
    from vlmconsole.engines.profile import load_profiles
    from vlmconsole.evaluation.whole_model import with_model

    profiles, places = load_profiles(None), Places(tmp_path)
    python = places.environments / "sglang-0.5.5" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    before, after = (
        find_engine("sglang").command(with_model(profiles["sglang-paired"], tmp_path / name), places, 30000)
        for name in ("one", "two")
    )
    assert [(a, b) for a, b in zip(before, after, strict=True) if a != b] == [
        (str(tmp_path / "one"), str(tmp_path / "two"))
    ]
    line = " ".join(after)
    for flags in (
        "--dtype bfloat16 --context-length 4096 --tp-size 1 --max-running-requests 1",
        "--chunked-prefill-size 2048 --mem-fraction-static 0.60 --random-seed 42",
        "--disable-radix-cache --disable-overlap-schedule --disable-cuda-graph --enable-deterministic-inference",
    ):
        assert flags in line
    fixed = profiles["sglang-paired"]
    assert fixed.launch is not None
    launch = fixed.launch.model_copy(update={"argv": ("python", "-m", "server", "--model", "mine")})
    with refused("model-fixed", "{model}"):
        with_model(fixed.model_copy(update={"launch": launch}), tmp_path)


def test_a_server_whose_settings_change_on_the_way_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vlmconsole.engines.effective import EffectiveSettings
    from vlmconsole.engines.profile import ServerProfile
    from vlmconsole.errors import LabError
    from vlmconsole.evaluation import served as asked
    from vlmconsole.evaluation.served import served
    from vlmconsole.measure.bench import MeasuredServer

    now = EffectiveSettings("sglang", version="0.5.5", running_limit=1, values={"chunked-prefill-size": 2048})

    async def readback(profile: ServerProfile) -> EffectiveSettings:
        return now

    monkeypatch.setattr(asked, "readback", readback)
    profile = ServerProfile(name="s", engine="sglang", base_url="http://127.0.0.1:9", model="m", served_model="m")
    settings = EvaluateSettings(data=["small"], backend="server", server="s")
    with served(resolve(settings, Places(tmp_path)).before, MeasuredServer(profile, now, "m")) as model:
        said = model.conditions()
        assert (said.running_limit, said.client_concurrency, said.temperature, said.seed) == (1, 1, 0.0, 42)
        now = EffectiveSettings("sglang", version="0.5.5", running_limit=1, values={"chunked-prefill-size": 512})
        with pytest.raises(LabError, match="chunked-prefill-size 2048 → 512"):
            model.conditions()


def test_a_comparison_of_a_model_with_itself_is_refused(tmp_path: Path) -> None:
    from vlmconsole.jobs.contract import JobError

    run = RunFolder.create(tmp_path / "runs", kind="evaluate", preset="x", spec={}, title="t", home=tmp_path)
    with refused("sides-same", "after_model", error=JobError):
        KIND.run(Context(run, Places(tmp_path)), EvaluateSettings(data=["small"]))


def test_the_development_answers_of_the_training_come_along_to_be_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vlmconsole.gates.plan import load_plan
    from vlmconsole.jobs import evaluate as job
    from vlmconsole.training.adapters import store
    from vlmconsole.training.adapters.provenance import Provenance

    training = RunFolder.create(tmp_path / "runs", kind="sft", preset="x", spec={}, title="t", home=tmp_path)
    for epoch in (2, 4, 6):
        training.append_jsonl(f"dev-epoch{epoch}.jsonl", {"id": f"dev-{epoch}"})
    origin = Provenance("sft", "b", "0" * 64, "float32", 8, 16, {}, training.name)
    adapter = store.Adapter("a", tmp_path, "peft", origin)
    monkeypatch.setattr(store, "find_adapter", lambda places, name: adapter)
    run = RunFolder.create(tmp_path / "runs", kind="evaluate", preset="y", spec={}, title="t", home=tmp_path)
    spec = EvaluateSettings(data=["sft-expand-tiny"], plan="sft-7-tiny", after_adapter="a")
    places = Places(tmp_path)
    job._copy_development(Context(run, places), resolve(spec, places), load_plan("sft-7-tiny"))
    assert sorted(path.name for path in run.path.glob("dev-*")) == [f"dev-epoch{n}.jsonl" for n in (2, 4, 6)]
