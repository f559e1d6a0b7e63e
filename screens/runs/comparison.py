"""Two measurements side by side: a table and bars when they may be compared, else every condition that differs."""

from __future__ import annotations

from typing import ClassVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from vlmconsole.compare.resampling import INTERVAL_MEANS
from vlmconsole.compare.runs import (
    COMPARABLE_MEANS,
    COMPARED,
    ComparedFigure,
    ComparedSide,
    Comparison,
    compare_sides,
    shown,
    told_by_one,
)
from vlmconsole.measure.machine_load import BUSY_MEANS
from vlmconsole.screens.keys import old_binding
from vlmconsole.screens.theme import DIALOGS
from vlmconsole.screens.widgets.dialogs import CANCEL
from vlmconsole.text.fitting import fitted
from vlmconsole.text.numbers import UNKNOWN, change, figure
from vlmconsole.text.plain import one_line

Piece = Content | str | tuple[str, str]
BAR_A, BAR_B = "▒", "█"


class ComparisonSheet(ModalScreen[None]):
    """`s` shows a refused comparison without a verdict; `d` takes the one difference for the experiment."""

    CSS_PATH = DIALOGS
    INTERVAL_MEANS: ClassVar[str] = INTERVAL_MEANS
    BINDINGS: ClassVar[list[BindingType]] = [
        CANCEL,
        Binding("q,enter", "cancel", "back", show=False),
        Binding("s", "side_by_side", "show figures"),
        Binding("d", "experiment", "treat this difference as the variable"),
        old_binding("o", "side_by_side", "s"),
        old_binding("x", "experiment", "d"),
        Binding("j,down", "scroll(1)", "down", show=False),
        Binding("k,up", "scroll(-1)", "up", show=False),
    ]

    def __init__(self, a: ComparedSide, b: ComparedSide, only: str | None = None) -> None:
        """`only` is the condition that may differ, as said before."""
        super().__init__(classes="reader")
        self._a, self._b = a, b
        self._open = False
        self._only = only
        self._comparison, self._rows = self._compared()

    def _compared(self) -> tuple[Comparison, list[ComparedFigure]]:
        """The verdict and the figures, with the one condition that may differ as it is now."""
        return compare_sides(self._a, self._b, self._only)

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet"):
            yield Static(id="compared-head")
            with VerticalScroll():
                yield Static(id="compared")
            yield Static(id="compared-keys")

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        self.call_after_refresh(self._draw)

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        width = max(40, self.query_one(VerticalScroll).scrollable_content_region.width)
        self.query_one("#compared-head", Static).update(self._head())
        self.query_one("#compared", Static).update(Content("\n").join(self._body(width)))
        self.query_one("#compared-keys", Static).update(self._keys())

    def _head(self) -> Content:
        pieces: list[Piece] = [("compare", "bold")]
        for bar, side in ((BAR_A, self._a), (BAR_B, self._b)):
            n = side.summary.get("n")
            pieces += ["\n", (bar, "$accent"), f" {one_line(side.name, 100)}", (f"  n = {figure(n)}", "$muted")]
            if side.remark:
                pieces += ["\n  ", (side.remark, "$warning")]
        return Content.assemble(*pieces, "\n")

    def _body(self, width: int) -> list[Content]:
        comparison = self._comparison
        if comparison.comparable:
            return [
                Content(comparison.sentence()),
                Content(COMPARABLE_MEANS).stylize("$muted"),
                *([Content(BUSY_MEANS).stylize("$warning")] if self._a.remark or self._b.remark else []),
                *self._figures(width, verdict=True),
                *self._same(),
            ]
        count = len(comparison.differs)
        lines: list[Content] = []
        if comparison.invalid:
            lines += [Content(f"✗ Not comparable. {' '.join(comparison.invalid)}").stylize("$error")]
        if count:
            sentence = f"✗ Not comparable: {count} condition{'s differ' if count > 1 else ' differs'}."
            lines += [Content(sentence).stylize("$error"), *_differences(comparison, width)]
        if self._open:
            lines += [Content(""), Content("Side by side, no verdict").stylize("$warning")]
            lines += self._figures(width, verdict=False)
        return [*lines, *self._same()]

    def _figures(self, width: int, *, verdict: bool) -> list[Content]:
        """Each figure of both; the change only where the two may be compared."""
        rows = self._rows
        names = max((len(row.name) for row in rows), default=8)
        head = f"{'':<{names}}  {'a':>10} {'b':>10}  {'':<6}" + (f"{'change':>9}" if verdict else "")
        judged = verdict and any(row.noise for row in rows)
        longest = max((cell_len(row.noise) for row in rows), default=0)
        in_line = len(head) + 2 + longest <= width  # else below its figure
        head += "  95 % interval" if judged and in_line else ""
        lines = [Content(""), Content(head).stylize("$faint")]
        for row in rows:
            changed = UNKNOWN if row.change is None else change(row.change)
            changed = changed if row.better else ""
            lines.append(
                Content.assemble(
                    (f"{row.name:<{names}}  ", "$muted"),
                    f"{figure(row.a):>10} {figure(row.b):>10}  ",
                    (f"{row.unit:<6}", "$faint"),
                    (f"{changed:>9}" if verdict else "", "bold"),
                    (f"  {row.noise}" if verdict and in_line else "", "$muted"),
                )
            )
            if row.noise and verdict and not in_line:
                what = "95 % interval " if row.interval else ""
                lines.append(Content(f"{'':<{names}}  {what}{row.noise}").stylize("$muted"))
        if judged:
            lines.append(Content(self.INTERVAL_MEANS).stylize("$faint"))
        return lines + self._drawn(names, width)

    def _drawn(self, names: int, width: int) -> list[Content]:
        """Both sides' figures as bars, below names of that many columns."""
        return _bars(self._rows, names, width)

    def _same(self) -> list[Content]:
        same = [
            f"{COMPARED.get(key, key)} {one_line(shown(key, value), 60)}"
            for key, value in self._comparison.same.items()
            if key != "clock"
        ]
        lines = [Content(""), Content.assemble(("Same: ", "$muted"), " · ".join(same) or "nothing known", ".")]
        if self._comparison.unknown:
            lines.append(Content.assemble(("Unknown for both: ", "$warning"), ", ".join(self._comparison.unknown), "."))
        if remark := told_by_one(self._comparison.one_sided):
            lines.append(Content(f"{remark[0].upper()}{remark[1:]}.").stylize("$muted"))
        return lines

    def _keys(self) -> Content:
        pieces: list[Piece] = [("Esc", "$accent"), (" back", "$muted")]
        comparison = self._comparison
        if not comparison.comparable:
            what = "hide figures" if self._open else "show figures"
            pieces += [("   s", "$accent"), (f" {what}", "$muted")]
        if len(comparison.differs) == 1 and not comparison.invalid:
            pieces += [("   d", "$accent"), (f" treat {comparison.differs[0].label} as the variable", "$muted")]
        return Content.assemble(*pieces)

    def action_side_by_side(self) -> None:
        if not self._comparison.comparable:
            self._open = not self._open
            self._draw()

    def action_experiment(self) -> None:
        """The twin of `--only KEY`."""
        differs = self._comparison.differs
        if len(differs) == 1 and not self._comparison.invalid:
            self._only = differs[0].key
            self._comparison, self._rows = self._compared()
            self._draw()

    def action_scroll(self, by: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)

    def action_cancel(self) -> None:
        self.dismiss(None)


def _differences(comparison: Comparison, width: int) -> list[Content]:
    """Every condition that differs, both values in full."""
    rows = [
        (difference.label, one_line(shown(difference.key, difference.a)), one_line(shown(difference.key, difference.b)))
        for difference in comparison.differs
    ]
    labels, left, rest = (max(cell_len(row[at]) for row in rows) for at in range(3))
    if labels + left + rest + 8 > width:
        return [
            line
            for label, a, b in rows
            for line in (Content(f"  {label}").stylize("$muted"), Content(f"    a  {a}"), Content(f"    b  {b}"))
        ]
    lines = [Content(f"  {'':<{labels}}  {'a':<{left}}  b").stylize("$faint")]
    return lines + [
        Content.assemble((f"  {label:<{labels}}  ", "$muted"), f"{fitted(a, left)}  {b}") for label, a, b in rows
    ]


def _bars(rows: list[ComparedFigure], names: int, width: int) -> list[Content]:
    """Both of each figure as bars; each pair has its own scale."""
    known = [row for row in rows if row.a is not None and row.b is not None and max(row.a, row.b) > 0]
    room = max(10, width - names - 14)
    lines = [Content("")] if known else []
    for row in known:
        a, b = row.a or 0.0, row.b or 0.0
        for at, (bar, value) in enumerate(((BAR_A, a), (BAR_B, b))):
            label = row.name if at == 0 else ""
            drawn = bar * max(1, round(value / max(a, b) * room))
            lines.append(
                Content.assemble((f"{label:<{names}}  ", "$muted"), (drawn, "$accent"), (f" {figure(value)}", ""))
            )
    if known:
        lines.append(Content("each pair of bars has its own scale").stylize("$faint"))
    return lines
