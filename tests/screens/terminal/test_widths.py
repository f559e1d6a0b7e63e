"""Names of any script in tables: what stands behind them stays in its column."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat_server import Say, chat_server, profile_file
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from test_chat_screen import answered, ask, console, until

from vlmconsole.desks.runs import RunLine
from vlmconsole.drawings.run import _table
from vlmconsole.reports.parts import Column, Table
from vlmconsole.screens.runs.table import RunRows
from vlmconsole.text.fitting import fitted

NAMES = ("plain", "写真の評価 1", "🎨 painter 👩‍🔬", "e\u0301te\u0301", "한국어 실험 이름", "عربى", "長い" * 30)


@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"))), st.integers(0, 40), st.booleans())
def test_a_text_fits_its_cells_exactly(text: str, width: int, right: bool) -> None:
    assert cell_len(fitted(text, width, right=right)) == width


@pytest.mark.parametrize("name", NAMES)
def test_the_columns_of_the_runs_stand_whatever_a_run_is_called(name: str) -> None:
    def drawn(preset: str) -> str:
        rows = RunRows(lambda: 0.0)
        rows.items = (made(preset),)
        return rows.line(0, 70).plain

    line = drawn(name)
    assert line.endswith(drawn("x")[-20:]) and cell_len(line) == cell_len(drawn("x"))


def made(preset: str) -> RunLine:
    return RunLine(
        "20261130-000000-x-0000", Path(), preset, "bench", "", "done", "", None, None, "", "0.12 s", "", "sealed"
    )


def test_a_tables_figures_stand_under_their_heads() -> None:
    columns = (Column("cell", figures=False), Column("TTFT"))
    lines = [line.plain for line in _table(Table("", columns, tuple((name, "0.12") for name in NAMES)), 50)]
    assert {cell_len(line) for line in lines} == {cell_len(lines[0])} and all(x.endswith("0.12") for x in lines[1:])


async def test_conversations_and_answers_keep_the_panes_where_they_are(tmp_path: Path) -> None:
    """Every line of the screen is as wide as the screen, and the panes' edges stand in one column."""
    said = "表の中身は「写真」です。" * 12 + "\n\n| 名前 | 数 |\n|---|---:|\n| 赤い円 | 3 |\n| square | 12 |\n"
    async with chat_server(Say([said])) as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await ask(pilot, screen, "🎨 写真を数えてください 👩‍🔬 " * 3)
            await until(lambda: answered(screen))
            await pilot.pause(0.2)
            strips = screen._compositor.render_strips()
            assert {strip.cell_length for strip in strips} == {120}
            edges = [panes.region for panes in (screen.conversations, screen.query_one("#middle"), screen.why)]
            for strip in strips[edges[0].y : edges[0].bottom]:
                for edge in (edges[1].x, edges[2].x):  # no wide letter lies across an edge
                    left = strip.crop(0, edge).text
                    assert cell_len(left) == edge, left
