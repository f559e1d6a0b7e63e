"""Who answered: the names in the answers stand in the conditions of a measurement, and a comparison sees them."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evaluated import Bench, Scripted
from replay import Reply, json_reply, replay, said, sse

from vlmconsole.compare.runs import compare
from vlmconsole.engines.effective import EffectiveSettings
from vlmconsole.engines.profile import ServerProfile
from vlmconsole.evaluation.answerer import ModelAnswer
from vlmconsole.measure.bench import MeasuredServer, conditions_of
from vlmconsole.measure.load import Body, LoadCell, Target, run_cell
from vlmconsole.measure.settings import BenchSettings
from vlmconsole.measure.summary import CellSummary
from vlmconsole.runs.folder import RunFolder

CHAT = "POST /v1/chat/completions"


def measured(home: Path, names: list[str | None]) -> tuple[CellSummary, str]:
    """One request for each name, answered under it."""
    replies = [Reply(sse({**said("red", "stop"), "model": name})) for name in names]
    run = RunFolder.create(home / "runs", kind="bench", preset="t", spec={}, title="t", home=home)

    async def ask() -> tuple[CellSummary, str]:
        async with replay({CHAT: replies, "GET /v1/models": json_reply({"data": [{"id": "m"}]})}) as player:
            bodies = [Body([b'{"model":"m","messages":[],"stream":true}']) for _ in names]
            cell = LoadCell("t", Target.of(f"{player.url}/v1/chat/completions"), bodies, lag_limit_s=60.0)
            return await asyncio.to_thread(run_cell, cell, run), player.url

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("names", "listed", "model", "asked", "note"),
    [
        (["m", "m"], ("m",), "m", None, ""),
        ([None, None], None, "m", None, ""),
        (["other", "other"], ("m",), "other", "m", "other answered instead of"),
        (["m", "other"], ("m",), "m, other", "m", "2 models answered"),
        (["m", "m"], ("x", "y"), "m", None, "is not listed"),
    ],
)
def test_conditions_of_a_measurement_name_the_model_that_answered(
    tmp_path: Path, names: list[str | None], listed: tuple[str, ...] | None, model: str, asked: str | None, note: str
) -> None:
    summary, url = measured(tmp_path, names)
    assert summary.n == 2 and summary.failures == 0
    profile = ServerProfile(name="box", engine="openai", base_url=url)
    there = MeasuredServer(profile, EffectiveSettings("openai", model="m", listed=listed), "m")
    told = conditions_of(BenchSettings(), there, summary, None, None)
    assert (told.model, told.asked_model) == (model, asked)
    assert any(note in one for one in told.notes) if note else not any("m," in one for one in told.notes)
    usual = told.model_copy(update={"model": "m", "asked_model": None})
    assert {one.key for one in compare(told, usual).differs} == ({"model", "asked_model"} if asked else set())


def test_an_evaluation_names_the_model_that_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows keep who answered, so that an attempt that goes on from another one knows it, too."""
    ask = Scripted.ask

    def by_another(self: Scripted, items: Sequence[Any]) -> list[ModelAnswer]:
        out = [replace(one, others=("other",), remarks=("model",)) for one in ask(self, items)]
        return [replace(out[0], remarks=("model", "limit")), *out[1:]]

    monkeypatch.setattr(Scripted, "ask", by_another)
    bench = Bench(tmp_path)
    run, evaluation = bench.attempt(plan=False)
    summary = evaluation.answer()
    conditions = run.read_json("conditions.json")
    assert [(one["model"], one["asked_model"]) for one in conditions.values()] == [("other", "scripted")] * 2
    rows = list(run.read_jsonl("before.jsonl"))
    assert {tuple(row["answered_by"]) for row in rows} == {("other",)}
    assert summary["endings"]["model"] == 2 * len(rows) and summary["endings"]["limit"] >= 1
    assert any("answered by other" in line for line in bench.told)
