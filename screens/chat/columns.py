"""Lines of label and value: labels to the left in grey, values to the right, nothing cut that fits on two lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.content import Content
from textual.css.styles import RulesMap
from textual.strip import Strip
from textual.style import Style
from textual.visual import RenderOptions, Visual


@dataclass(frozen=True)
class PanelRow:
    """One line. `mark` is a style for the value: "" plain, "$warning", "$error", "$muted", "bold"."""

    label: str
    value: str
    mark: str = ""


@dataclass(frozen=True)
class PanelHeading:
    """A quiet heading between groups of rows."""

    title: str


class RowsVisual(Visual):
    """Rows at a width; a value too long for its line goes below its label, wrapped and right-aligned."""

    def __init__(self, rows: Sequence[PanelRow | PanelHeading]) -> None:
        self.rows = tuple(rows)

    def lines(self, width: int) -> list[Content]:
        made: list[Content] = []
        for row in self.rows:
            if isinstance(row, PanelHeading):
                if made:
                    made.append(Content(""))
                made.append(Content(row.title).stylize("$muted"))
                continue
            label = Content(row.label).stylize("$muted")
            value = Content(row.value).stylize(row.mark) if row.mark else Content(row.value)
            gap = width - label.cell_length - value.cell_length
            if gap >= 1 or not row.value:
                made.append(Content.assemble(label, " " * max(0, gap), value))
                continue
            room = width - label.cell_length - 2
            parts = value.wrap(max(8, room if room >= 14 else width - 2))
            if room >= 14 and parts:
                made.append(label + parts[0].pad_left(max(0, width - label.cell_length - parts[0].cell_length)))
                parts = parts[1:]
            else:
                made.append(label)
            made.extend(part.pad_left(max(0, width - part.cell_length)) for part in parts)
        return made

    def get_optimal_width(self, rules: RulesMap, container_width: int) -> int:
        return container_width

    def get_height(self, rules: RulesMap, width: int) -> int:
        return len(self.lines(width))

    def render_strips(self, width: int, height: int | None, style: Style, options: RenderOptions) -> list[Strip]:
        lines = self.lines(width)
        return [
            strip
            for line in (lines if height is None else lines[:height])
            for strip in (line or Content(" ")).render_strips(width, 1, style, options)
        ]
