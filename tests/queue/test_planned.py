"""What is certain to fail is refused when it is planned, not an hour later in the worker."""

from pathlib import Path
from typing import Any

import pytest
from refusals import check_error, check_nouns, check_stderr, mentions, refused

from vlmconsole.cli import main
from vlmconsole.errors import LabError
from vlmconsole.jobs.contract import not_installed
from vlmconsole.jobs.presets import Preset, PresetError, load_preset
from vlmconsole.queue import adding
from vlmconsole.queue.model import NewJob
from vlmconsole.queue.schema import QueueError
from vlmconsole.queue.store import Store
from vlmconsole.runs.places import Places

HUGE = 99999999999999999999
REFUSED = [
    ("sft-expand-tiny", ["base=./none"], "./none"),
    ("sft-expand-tiny", ["adapter=nowhere"], "nowhere"),
    ("sft-expand-tiny", ["data=nothing"], "'nothing'"),
    ("sft-expand-tiny", ["data=grpo-tiny"], "0 splits"),
    ("repair-1-tiny", [], "sft-expand-tiny"),  # its own adapter is not made yet
    ("grpo-3-tiny", ["validation_split=odd"], "split “odd”"),
    ("grpo-3-tiny", ["base=./none"], "./none"),
    ("eval-sft-tiny", [], "same model"),
    ("eval-sft-tiny", ["after_adapter=nowhere"], "nowhere"),
    ("eval-grpo-tiny", ["after_model=./none"], "./none"),
    ("eval-groups-tiny", ["data=['nothing']"], "'nothing'"),
    ("eval-groups-tiny", ["backend=server", "server=none"], "“none”"),
    ("freeze-gates", ["plan=nothing", "data=['sft-expand-tiny']"], "nothing"),
    ("freeze-gates", ["plan=sft-7-tiny", "data=['nothing']"], "'nothing'"),
    ("freeze-gates", ["plan=sft-7-tiny", "data=['sft-expand-tiny']", "limits=['odd']"], "odd"),
    ("audit", ["run=nothing"], "“nothing”"),
    ("tune-tiny", ["server=openai"], "openai"),
    ("cache-probe-text", ["control=none"], "“none”"),
    ("cache-probe-text", ["server=none"], "“none”"),
    ("smoke", ["server=none"], "“none”"),
]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "home").ensure()


@pytest.mark.parametrize(("preset", "sets", "noun"), REFUSED)
def test_what_is_not_there_is_refused_with_its_name(preset: str, sets: list[str], noun: str, places: Places) -> None:
    with pytest.raises(LabError) as failure:
        adding.plan(load_preset(preset), sets, places)
    check_nouns(f"{failure.value.message} {failure.value.hint}", noun)


def test_a_bad_gate_plan_file_is_refused_when_it_is_to_be_frozen(places: Places, tmp_path: Path) -> None:
    for number, text in enumerate(("not toml [", 'kind = "gates"\n', "")):
        bad = tmp_path / f"{number}.toml"
        bad.write_text(text)
        with pytest.raises(PresetError, match=bad.name):
            adding.plan(load_preset("freeze-gates"), [f"plan={bad}", "data=['sft-expand-tiny']"], places)


def test_what_a_job_before_it_may_make_is_not_missed(places: Places) -> None:
    assert adding.plan(load_preset("repair-1-tiny"), [], places, alone=False)
    assert adding.plan(load_preset("eval-sft-tiny"), ["after_adapter=to come"], places, alone=False)
    with pytest.raises(PresetError, match="--after"):
        adding.plan(load_preset("repair-1-tiny"), [], places)
    steps = [
        {"name": "train", "preset": "sft-expand-tiny"},
        {"name": "repair", "preset": "repair-1-tiny", "set": {"adapter": "${train.adapter}"}},
        {"name": "again", "preset": "repair-1-tiny", "after": ["train"]},  # by the preset's name
    ]
    assert len(adding.plan(Preset("f", "flow", "F", {"steps": steps}), [], places)) == 4
    steps[0]["set"] = {"base": "./none"}
    with pytest.raises(PresetError, match=r"sft-expand-tiny: .*/none"):
        adding.plan(Preset("f", "flow", "F", {"steps": steps}), [], places)


@pytest.mark.parametrize(
    ("preset", "setting", "nouns"),
    [
        ("smoke", f"x={HUGE}", ["“x”", "67 bits", "64"]),
        ("main-experiment-tiny", f"seed={HUGE}", ["“seed”", "67 bits"]),
        ("main-experiment-tiny", f"grid.concurrency=[1, -{HUGE}]", ["“grid.concurrency.1”", "67 bits"]),
        ("sft-expand-tiny", "clip=inf", ["“clip”", "inf", "finite"]),
        ("grpo-3-tiny", "temperature=nan", ["“temperature”", "nan", "finite"]),
        ("model-tiny", f"seed={HUGE}", ["“seed”", "67 bits"]),
        ("sft-expand-tiny", "epochs=true", ["“epochs”", "true", "whole number"]),
        ("sft-expand-tiny", "lr=true", ["“lr”", "true", "number"]),
        ("sft-expand-tiny", "lr=NaN", ["“lr”", "NaN", "finite"]),
        ("sft-expand-tiny", "dev_epochs=[true]", ["“dev_epochs”", "[true]", "whole number"]),
        ("sft-expand-tiny", "dev_epochs=[]", ["“dev_epochs”", "[]", "1"]),
        ("sft-expand-tiny", "dev_epochs=[2,2]", ["“dev_epochs”", "[2, 2]", "6", "once"]),
    ],
)
def test_numbers_that_no_file_holds_are_refused_by_their_key(
    preset: str, setting: str, nouns: list[str], places: Places
) -> None:
    with refused("setting-invalid", *nouns, error=PresetError):
        adding.plan(load_preset(preset), [setting], places)


@pytest.mark.parametrize("key", ["image", "cells", "grid.image"])
@pytest.mark.parametrize(
    ("size", "words"),
    [("1x1000", "longer than 200:1"), ("99999999x99999999", "at most 16384 pixels"), ("16000x16000", "million pixels")],
)
def test_a_picture_that_no_model_takes_is_not_planned(key: str, size: str, words: str, places: Places) -> None:
    value = {"image": size, "cells": f'[{{image="{size}"}}]', "grid.image": f'["{size}"]'}[key]
    with pytest.raises(PresetError, match=words):
        adding.plan(load_preset("cb-grid-tiny"), [f"{key}={value}"], places)


def test_what_could_only_fail_is_said_in_the_plan(places: Places) -> None:
    def problems(preset: str, *sets: str) -> list[str]:
        return [text for one in adding.plan(load_preset(preset), sets, places, refuse=False) for text in one.problems]

    (places.runs / "there-1").mkdir(parents=True)
    (places.runs / "there-1" / "job.json").write_text("{}")
    assert mentions(problems("report", "runs=['nope']")[0], "runs")
    assert problems("report", "runs=['nope', 'there-1']") == []  # which names what is missing
    (judged,) = problems("freeze-gates", "plan=grpo-5-tiny", "data=['naming']")
    assert mentions(judged, "grpo-5-tiny", "grpo-tiny", "naming")
    assert problems("freeze-gates", "plan=grpo-5-tiny", "data=['grpo-tiny', 'naming']") == []


def test_the_queues_own_numbers_have_their_limits_too(places: Places) -> None:
    store = Store(places.queue)
    for key, value in (("priority", HUGE), ("priority", 2_000_000), ("wall_clock_s", float("inf")), ("retries", HUGE)):
        preset = load_preset("smoke")
        wrong = Preset(preset.name, preset.kind, preset.title, preset.spec, queue={key: value})
        with pytest.raises(PresetError, match=rf"\[queue\].*{key}"):
            adding.plan(wrong, [], places)
    planned = adding.plan(load_preset("smoke"), [], places)
    with refused("number-too-large", "priority", "99999999999999999999", error=QueueError):
        adding.add(store, planned, priority=HUGE)
    number = store.add(NewJob("p", "k", "t", {}))
    asked: tuple[Any, ...] = (store.get, store.cancel, store.again, store.clone, store.attempts, store.steps)
    for ask in asked:
        with refused("number-too-large", "64 bits", error=QueueError):
            ask(HUGE)
    store.move(number, HUGE)
    with refused("number-too-large", "64 bits", error=QueueError):
        adding.add(store, planned, after=[(HUGE, "ok")])
    assert len(store.listing()) == 1  # nothing was half added


def test_a_plan_that_must_fail_is_shown_with_its_reason_and_an_exit_code(
    places: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--home", str(places.home)]
    with pytest.raises(SystemExit) as ended:
        main([*words, "run", "sft-expand-tiny", "--set", "base=x", "--plan"])
    shown = capsys.readouterr().out
    assert ended.value.code == 2 and "preflight failed: no model at “x”" in shown and "rank = 8" in shown
    with pytest.raises(SystemExit) as ended:
        main([*words, "jobs", "add", "sft-expand-tiny", "--set", "base=x"])
    assert ended.value.code == 2
    check_stderr(capsys.readouterr().err, "x", "no model at")
    assert Store(places.queue).listing(True) == []


def test_a_flow_says_each_fault_once_at_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--home", str(tmp_path), "run", "lab-3b", "--plan"])
    assert ended.value.code == 2
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("  preflight failed, ") and "Qwen/Qwen2.5-VL-3B-Instruct" in last
    assert "steps: freeze-sft, " in last and "grpo-30" in last


def test_a_missing_library_is_told_with_its_extra_and_a_fault_of_ours_is_not_hidden() -> None:
    missing = not_installed(ModuleNotFoundError("no", name="peft.utils"), "training", "train")
    check_error(missing, "library-missing", "training", "peft.utils", "`pip install 'vlmconsole[train]'`")
    ours = ModuleNotFoundError("no", name="vlmconsole.training.gone")
    with pytest.raises(ModuleNotFoundError) as raised:
        not_installed(ours, "training", "train")
    assert raised.value is ours
