"""Evaluation over real pictures with an answerer whose words are chosen: freezing, keeping, resuming, refusing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import judged
import pytest
from test_textvqa_data import many, write_shards
from vlmconsole.jobs.contract import Context
from vlmconsole.jobs.evaluate import KIND

from vlmconsole.counting.ready import ready
from vlmconsole.counting.rows import DataError
from vlmconsole.evaluation import local
from vlmconsole.evaluation.agreement import agreement
from vlmconsole.evaluation.answerer import Said, Who
from vlmconsole.evaluation.evaluate import Evaluation, EvaluationError
from vlmconsole.evaluation.items import choose, items_digest
from vlmconsole.evaluation.notes import NoteError, add_note, read_notes
from vlmconsole.evaluation.settings import EvaluateSettings
from vlmconsole.evaluation.taking import Earlier
from vlmconsole.gates.bind import bind, freeze_for_run
from vlmconsole.gates.ledger import Ledger
from vlmconsole.gates.verdict import judge
from vlmconsole.runs.conditions import Conditions
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places


class KilledError(BaseException):
    """The process is gone: nothing after it runs."""


@dataclass
class Scripted:
    """An answerer with chosen words. `wrong` ids get a wrong answer, `fails` ids a failed request."""

    side: str
    facts: dict[str, Any]
    asked: list[tuple[str, str]]  # (side, id) over every attempt
    settings: dict[str, Any] = field(default_factory=dict)
    wrong: frozenset[str] = frozenset()
    fails: frozenset[str] = frozenset()
    die_after: int | None = None  # answers, over every attempt
    who: Who = field(default_factory=lambda: Who("scripted"))

    def ask(self, items: Sequence[Any]) -> list[Said]:
        out = []
        for item in items:
            if self.die_after is not None and len(self.asked) >= self.die_after:
                raise KilledError
            self.asked.append((self.side, item.id))
            truth = item.truth if isinstance(item.truth, str) else item.truth[0]
            answer = None if item.id in self.fails else "no" if item.id in self.wrong else truth
            error = "the server said 503" if answer is None else ""
            ids = None if answer is None else list(answer.encode())
            out.append(Said(answer, ids, item.pixel_sha256, "stop", 80, 9, 0.01, error=error))
        return out

    def conditions(self) -> Conditions:
        adapter = "sft" if self.side == "after" else None
        return Conditions(
            engine="scripted", temperature=0.0, max_tokens=64, adapter=adapter, settings=self.settings or None
        )


@dataclass
class Bench:
    """A lab home with the small dataset, and evaluations over it."""

    home: Path
    asked: list[tuple[str, str]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dataset = judged.small_dataset(self.home)
        self.ledger = Ledger(self.home / "ledger.jsonl")

    def attempt(self, earlier: RunFolder | None = None, plan: bool = True, **changes: Any) -> tuple[RunFolder, Any]:
        """A new attempt: the run folder and a function that answers it."""
        more: dict[str, Any] = {} if earlier is None else {"earlier": str(earlier.path)}
        run = RunFolder.create(
            self.home / "runs", kind="evaluate", preset="small", spec={}, title="t", home=self.home, **more
        )
        settings = EvaluateSettings(data=["small"], batch=changes.pop("batch", 4), paired=changes.pop("paired", True))
        frozen = bind(judged.plan(), [self.dataset]) if plan else None
        if frozen is not None:
            freeze_for_run(frozen, run, self.home, self.ledger)
        items = choose(settings, [self.dataset], frozen)
        facts = changes.pop("facts", {"backend": "in-process", "versions": {"torch": "1"}})
        per_side: Callable[[str], dict[str, Any]] = changes.pop("per_side", lambda side: {})

        @contextmanager
        def opener(side: str) -> Iterator[Scripted]:
            yield Scripted(side, **{"facts": facts, "asked": self.asked, **changes, **per_side(side)})

        going_on = Earlier(earlier, items) if earlier is not None else None
        return run, Evaluation(run, settings, items, opener, earlier=going_on, say=self.told.append)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def ids(run: RunFolder, side: str) -> list[str]:
    return [line["id"] for line in judged.lines_of(run, f"{side}.jsonl")]


def untimed(run: RunFolder) -> list[list[dict[str, Any]]]:
    lines = [judged.lines_of(run, f"{side}.jsonl") for side in ("before", "after")]
    return [[{k: v for k, v in line.items() if k != "t"} for line in side] for side in lines]


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
    assert first["prompt"].startswith("Count the red circles")
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
    with pytest.raises(EvaluationError, match="chunked-prefill-size is 6 before and 5 after"):
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
    with pytest.raises(EvaluationError, match="5 requests failed one after another: the server said 503"):
        evaluation.answer()
    assert len(ids(run, "before")) == 5


def test_one_side_alone_and_groups_by_name(bench: Bench) -> None:
    settings = EvaluateSettings(data=["small"], paired=False, groups=["hollow", "test-naming"], limit=3)
    items = choose(settings, [ready("small", bench.home / "datasets", say=bench.told.append)], None)
    assert [(i.group, i.scorer) for i in items] == [("hollow", "counting")] * 3 + [("naming", "naming")] * 3
    with pytest.raises(DataError, match="holds nosuch"):
        choose(settings.model_copy(update={"groups": ["nosuch"]}), [bench.dataset], None)
    with pytest.raises(DataError, match="no recipe called 'nosuch'"):
        ready("nosuch", bench.home / "datasets")
    with pytest.raises(DataError, match="textvqa64 is not made yet"):
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
        ({"scorer": "guess"}, "unknown scorer"),
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
    def opener(settings: EvaluateSettings, side: str, places: Places) -> Iterator[Scripted]:
        yield Scripted(side, {"backend": "in-process"}, bench.asked)

    return opener


def _toml(table: dict[str, Any]) -> str:
    import tomlkit

    return tomlkit.dumps(table)


def test_notes_are_only_added_and_touch_neither_run_nor_scores(bench: Bench) -> None:
    run, evaluation = bench.attempt()
    evaluation.answer()
    bench.ledger.seal(run)
    before = judge(run, bench.ledger).to_json()
    one = add_note(bench.home, run, "small-test-hollow-00002", "Wrong target", "took the outline for a square")
    add_note(bench.home, run, "small-test-hollow-00002", "misread letter", side="before")
    path = next((bench.home / "notes").iterdir())
    path.write_bytes(path.read_bytes() + b'{"torn": ')
    add_note(bench.home, run, "small-test-regular-00000", "wrong target")
    found = read_notes(bench.home, run)
    assert [(n.side, n.tag) for n in found] == [
        ("after", "wrong target"),
        ("before", "misread letter"),
        ("after", "wrong target"),
    ]
    assert found[0] == one
    assert bench.ledger.verify(run).status == "intact"
    assert judge(run, bench.ledger).to_json() == before
    for sample, tag in (("nosuch", "x"), ("small-test-hollow-00002", ""), ("small-test-hollow-00002", "a\nb")):
        with pytest.raises(NoteError):
            add_note(bench.home, run, sample, tag)


def test_agreement_counts_like_answers_and_still_says_why_the_runs_may_not_be_paired(bench: Bench) -> None:
    wrong = frozenset({"small-test-regular-00001"})
    one, evaluation = bench.attempt(plan=False, paired=False)
    evaluation.answer()
    two, evaluation = bench.attempt(plan=False, paired=False, wrong=wrong, settings={"batch": 7})
    evaluation.answer()
    found = agreement(one, two)
    assert (found.n, found.differing) == (30, tuple(wrong))
    assert "29 of 30 answers are the same (96.7 %)" in found.sentence()
    assert "Not to be paired" in found.sentence() and "batch" in found.sentence()
    assert json.loads(json.dumps(found.to_json()))["pairable"] is False
    assert agreement(one, one).unlike == ()
    for text in ("3", "", '{"before": 3}'):
        two.file("conditions.json").write_text(text)
        assert f"{two.name} tells no conditions of before" in agreement(two, two).unlike, "alike by lack of them"


def test_the_paired_server_changes_its_model_and_nothing_else(tmp_path: Path) -> None:
    from vlmconsole.engines import servers
    from vlmconsole.engines.profile import load_profiles
    from vlmconsole.errors import LabError
    from vlmconsole.evaluation.served import with_model

    profiles, places = load_profiles(None), Places(tmp_path)
    python = places.environments / "sglang-0.5.5" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    before, after = (
        servers._command(with_model(profiles["sglang-paired"], tmp_path / name), places, 30000)
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
    with pytest.raises(LabError, match="names its model itself"):
        with_model(fixed.model_copy(update={"launch": launch}), tmp_path)


def test_a_server_whose_settings_change_on_the_way_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vlmconsole.engines import servers
    from vlmconsole.engines.effective import EffectiveSettings
    from vlmconsole.engines.profile import ServerProfile
    from vlmconsole.errors import LabError
    from vlmconsole.evaluation.served import served
    from vlmconsole.measure.bench import Server

    now = EffectiveSettings("sglang", version="0.5.5", running_limit=1, values={"chunked-prefill-size": 2048})

    async def readback(profile: ServerProfile) -> EffectiveSettings:
        return now

    monkeypatch.setattr(servers, "readback", readback)
    profile = ServerProfile(name="s", engine="sglang", base_url="http://127.0.0.1:9", model="m", served_model="m")
    settings = EvaluateSettings(data=["small"], backend="server", server="s")
    with served(settings, "before", Server(profile, now, "m"), Places(tmp_path)) as model:
        said = model.conditions()
        assert (said.running_limit, said.client_concurrency, said.temperature, said.seed) == (1, 1, 0.0, 42)
        now = EffectiveSettings("sglang", version="0.5.5", running_limit=1, values={"chunked-prefill-size": 512})
        with pytest.raises(LabError, match="chunked-prefill-size 2048 → 512"):
            model.conditions()


def test_a_comparison_of_a_model_with_itself_is_refused(tmp_path: Path) -> None:
    from vlmconsole.jobs.contract import JobError

    run = RunFolder.create(tmp_path / "runs", kind="evaluate", preset="x", spec={}, title="t", home=tmp_path)
    with pytest.raises(JobError, match="the same model"):
        KIND.run(Context(run, Places(tmp_path)), EvaluateSettings(data=["small"]))


def test_notes_and_agreement_on_the_command_line(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    from vlmconsole.cli import main

    run, evaluation = bench.attempt(plan=False, paired=False)
    evaluation.answer()

    def told(*words: str) -> Any:
        with pytest.raises(SystemExit) as ended:
            main(["--home", str(bench.home), "--json", "gates", *words])
        out = capsys.readouterr().out
        return ended.value.code, json.loads(out) if out.strip() else None

    assert told("note", run.name, "--sample", "small-test-naming-00001", "--tag", "wrong target")[0] == 0
    code, value = told("notes", run.name)
    assert (code, value["tags"], value["notes"][0]["side"]) == (0, {"wrong target": 1}, "before")
    assert told("note", run.name, "--sample", "nosuch", "--tag", "x")[0] == 2
    code, value = told("agree", run.name, run.name)
    assert (code, value["share"], value["pairable"]) == (0, 1.0, True)


def test_the_development_answers_of_the_training_come_along_to_be_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vlmconsole.jobs import evaluate as job

    from vlmconsole.gates.rules import load_plan
    from vlmconsole.training.adapters import Adapter
    from vlmconsole.training.provenance import Provenance

    training = RunFolder.create(tmp_path / "runs", kind="sft", preset="x", spec={}, title="t", home=tmp_path)
    for epoch in (2, 4, 6):
        training.append_jsonl(f"dev-epoch{epoch}.jsonl", {"id": f"dev-{epoch}"})
    origin = Provenance("sft", "b", "0" * 64, "float32", 8, 16, {}, training.name)
    adapter = Adapter("a", tmp_path, "peft", origin)
    monkeypatch.setattr(job, "_adapter", lambda context, name: adapter)
    run = RunFolder.create(tmp_path / "runs", kind="evaluate", preset="y", spec={}, title="t", home=tmp_path)
    spec = EvaluateSettings(data=["sft-expand-tiny"], plan="sft-7-tiny", after_adapter="a")
    job._take_development(Context(run, Places(tmp_path)), spec, load_plan("sft-7-tiny"))
    assert sorted(path.name for path in run.path.glob("dev-*")) == [f"dev-epoch{n}.jsonl" for n in (2, 4, 6)]


def test_the_spread_between_trainings_stands_beside_the_interval_over_pictures(bench: Bench) -> None:
    from vlmconsole.errors import LabError
    from vlmconsole.evaluation.spread import spread

    def seed(number: int, wrong: int, **more: Any) -> RunFolder:
        bad = frozenset(f"small-test-hollow-{n:05d}" for n in range(wrong))
        sides = {
            "before": {"wrong": frozenset(f"small-test-hollow-{n:05d}" for n in range(8))},
            "after": {"wrong": bad, **more},
        }
        run, evaluation = bench.attempt(plan=False, per_side=lambda side: sides[side])
        evaluation.answer()
        told = run.read_json("conditions.json")
        told["after"]["adapter"] = f"seed-{number}"
        run.write_json("conditions.json", told)
        return run

    one, two = seed(1, 0), seed(2, 3)
    groups = {found.group: found for found in spread([one, two])}
    assert groups["hollow"].all_correct == (1.0, 0.7)
    assert [round(difference, 6) for difference, _, _ in groups["hollow"].intervals] == [0.8, 0.5]
    assert groups["regular"].all_correct == (1.0, 1.0)
    assert "70.0–100.0 % all-correct between 2 trainings (100.0, 70.0), n = 10" in groups["hollow"].sentence()
    with pytest.raises(LabError, match="at least two"):
        spread([one])
    with pytest.raises(LabError, match="the same adapter"):
        spread([one, one])
    with pytest.raises(LabError, match="not whole: 1 requests of after failed"):
        spread([one, seed(3, 0, fails=frozenset({"small-test-regular-00003"}))])
