"""Runs are drawn once: within their width, without a foreign command, and with the same words on both surfaces."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from folders import DATA
from rich.cells import cell_len
from rich.console import Console

from vlmconsole.cli.plots import show_plots
from vlmconsole.drawings.lines import Line, as_rich, line, wrapped
from vlmconsole.drawings.measured import cell_table, heat, pair_bars, scatter, waterfalls
from vlmconsole.measure import views
from vlmconsole.measure.axes import axes
from vlmconsole.runs.folder import RunFolder
from vlmconsole.screens.runs.figures import content_of

RECORDED = sorted(path.parent for path in (DATA / "runs").glob("*/job.json"))
STYLE = re.compile(r"(bold|accent|muted|faint|warning|error|ground-\d+|\s)*")


def drawn(run: RunFolder, width: int) -> list[Line]:
    found = views.cells(run)
    lines = cell_table(found, width) if found else []
    for one in axes(found):
        lines += scatter(one, width)
    lines += heat(found, width) + pair_bars(views.pairs(run), width)
    return lines + waterfalls(list(views.waterfalls(run).items()), width)


@pytest.mark.parametrize("folder", RECORDED, ids=lambda path: path.name)
@pytest.mark.parametrize("width", [60, 66, 110])
def test_a_drawing_keeps_to_its_width_and_its_styles(folder: Path, width: int) -> None:
    for one in drawn(RunFolder(folder), width):
        assert cell_len(one.plain) <= width, one.plain
        assert all(STYLE.fullmatch(style) for _, style in one.pieces)
        assert "\x1b" not in one.plain and "\n" not in one.plain


@pytest.mark.parametrize("folder", RECORDED, ids=lambda path: path.name)
def test_both_surfaces_show_the_same_text(folder: Path) -> None:
    lines = drawn(RunFolder(folder), 80)
    plain = as_rich(lines).plain.split("\n") if lines else []
    assert plain == [content_of(one).plain.rstrip() for one in lines]
    out = io.StringIO()
    show_plots(Console(file=out, width=80), RunFolder(folder))
    assert max(map(cell_len, out.getvalue().splitlines()), default=0) <= 110


def test_styles_are_those_of_each_surface() -> None:
    one = line(("warm", "bold accent"), ("3.2", "ground-30"), " s", ("", "error"))
    assert [text for text, _ in one.pieces] == ["warm", "3.2", " s"]
    assert [span.style for span in content_of(one).spans] == ["bold $accent", "on $accent 30%"]
    assert [str(span.style) for span in as_rich([one]).spans] == ["bold green"]
    assert [part.plain for part in wrapped("one two", 10)] == ["one two"]
