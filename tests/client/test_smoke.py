"""The first look at a server: three verdicts, by rules fixed before, on made-up answers and on real ones."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

from vlmconsole.client.chat import Answer
from vlmconsole.client.sight import Sight
from vlmconsole.engines.profile import ServerProfile
from vlmconsole.evaluation.smoke import CHECKS, judge, look, smoke_picture
from vlmconsole.jobs.contract import Context, JobError
from vlmconsole.jobs.presets import load_preset, overlay
from vlmconsole.jobs.smoke import KIND
from vlmconsole.measure.calibration.reference import Schedule, running
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.servers.server import Ready
from vlmconsole.streams.stream import StreamResult
from vlmconsole.streams.timing import timing

TEXT, COLOUR, SHAPE = CHECKS


def answer(text: str, ended: Any = "done", error: str | None = None, state: Any = "equal") -> Answer:
    result = StreamResult(text=text, ended=ended, error=error)
    result.stamps.first_byte = 1.0
    sight = Sight("smoke.png", (448, 448), "0" * 64, "", 64, 64, "local tokenizer", state, "")
    return Answer(result, timing(result), [sight])


def verdict(*answers: Answer) -> Any:
    return judge(smoke_picture(), list(zip(CHECKS, answers, strict=True)))


@pytest.mark.parametrize(
    ("check", "text", "right"),
    [
        (TEXT, 'The picture says "Local Test 42".', True),
        (TEXT, "LOCAL TEST 4 2", False),
        (TEXT, "LOCAL TEST 421", False),
        (COLOUR, "Red.", True),
        (COLOUR, "It is red, not blue.", False),  # two colours are no answer
        (COLOUR, "A red square under black text on white", True),
        (COLOUR, "reddish", False),
        (SHAPE, "The red shape is a square.", True),
        (SHAPE, "A red rectangle.", False),  # what the reference lab's model said: wrong, and it stays wrong
        (SHAPE, "A square rectangle.", False),
        (SHAPE, "", False),
    ],
)
def test_the_rules(check: Any, text: str, right: bool) -> None:
    assert check.right(text) is right


def test_the_three_verdicts_are_told_apart() -> None:
    good = verdict(answer("LOCAL TEST 42"), answer("red"), answer("square"))
    assert (good.reachable, good.usable, good.right) == (True, True, True)
    wrong = verdict(answer("LOCAL TEST 42"), answer("red"), answer("a rectangle"))
    assert (wrong.usable, wrong.right) == (True, False)
    assert "'square' wanted, 'a rectangle' said" in wrong.why["right"]
    assert [s["right"] for s in wrong.samples] == [True, True, False]
    broken = verdict(answer("LOCAL TEST 42"), answer("r", "cut", "cut off"), answer("square"))
    assert (broken.reachable, broken.usable, broken.right) == (True, False, None)
    empty = verdict(answer("LOCAL TEST 42"), answer("  "), answer("square"))
    assert (empty.usable, empty.why["usable"]) == (False, "colour: no words")
    blind = verdict(answer("LOCAL TEST 42"), answer("red", state="different"), answer("square"))
    assert (blind.usable, blind.right) == (False, None)


def test_a_server_that_is_not_there_is_not_reachable_and_that_is_kept(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "runs", kind="smoke", preset="smoke", spec={}, title="t", home=tmp_path)
    spec = KIND.spec(base_url="http://127.0.0.1:9/v1", model="m")
    with refused("server-unreachable", "http://127.0.0.1:9", error=JobError):
        KIND.run(Context(run, Places(tmp_path).ensure()), spec)
    kept = run.read_json("smoke.json")
    assert (kept["reachable"], kept["usable"], kept["right"]) == (False, None, None)


def test_any_server_can_be_asked_and_a_broken_line_is_not_usable() -> None:
    with running(Schedule(0, 1, 0, 4)) as server:
        values = {"name": "any", "engine": "openai", "served_model": "m"}
        fine = asyncio.run(look(ServerProfile(**values, base_url=server.base_url)))
        cut = asyncio.run(look(ServerProfile(**values, base_url=server.fault_url("cut").rsplit("/v1/", 1)[0] + "/v1")))
    assert (fine.reachable, fine.usable, fine.right) == (True, True, False)
    assert (cut.reachable, cut.usable, cut.right) == (True, False, None)


def test_the_bundled_model_sees_and_cannot_read_as_the_preset_says(tmp_path: Path, mlx_server: Ready) -> None:
    preset = load_preset("smoke")
    assert "cannot read" in preset.notes
    assert overlay(preset).model_dump()["server"] == "demo"
    found = asyncio.run(look(mlx_server.profile))
    assert (found.reachable, found.usable, found.right) == (True, True, False)
    assert {s["name"]: s["right"] for s in found.samples} == {"text": False, "colour": True, "shape": True}
    assert {s["sight"] for s in found.samples} == {"equal"}
    assert json.loads(json.dumps(found.to_json()))["why"]["right"].startswith("text: 'LOCAL TEST 42' wanted")
