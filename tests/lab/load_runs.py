"""Cells of the load client against the reference server over real sockets, each in its own process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vlmconsole.measure.calibration.reference import Reference, Schedule, running
from vlmconsole.measure.inputs import InputRecipe
from vlmconsole.measure.load import REQUESTS, LoadCell, Target, run_cell
from vlmconsole.measure.summary import CellSummary
from vlmconsole.runs.folder import RunFolder

TOKENS = 8
RECIPE = InputRecipe(
    "test",
    {"model": "reference", "max_tokens": TOKENS, "stream": True, "stream_options": {"include_usage": True}},
)
#: other programs share the machine that tests run on: figures are checked, its idleness is not
PATIENT = 10.0


@pytest.fixture(name="server", scope="module")
def server_fixture() -> Iterator[Reference]:
    with running(Schedule(role_ms=2, ttft_ms=30, itl_ms=4, tokens=TOKENS)) as found:
        yield found


@pytest.fixture(name="run")
def run_fixture(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, kind="bench", preset="test", spec={}, title="test", home=tmp_path)


def measure(run: RunFolder, url: str, n: int = 4, **fields: Any) -> CellSummary:
    settings = {"lag_limit_s": PATIENT, "warm_up": [], **fields}
    cell = LoadCell("test", Target.of(f"{url}/chat/completions"), list(RECIPE.bodies(range(n))), **settings)
    return run_cell(cell, run)


def rows(run: RunFolder) -> list[dict[str, Any]]:
    return list(run.read_jsonl(REQUESTS))
