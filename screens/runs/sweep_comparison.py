"""Two whole sweeps side by side: a line for each pair of cells, from which one opens that pair."""

from __future__ import annotations

from typing import ClassVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from vlmconsole.compare.runs import COMPARABLE_MEANS, ComparedFigure
from vlmconsole.compare.sweeps import CellPair, SweepComparison
from vlmconsole.screens.keys import old_binding
from vlmconsole.screens.runs.comparison import ComparisonSheet
from vlmconsole.screens.theme import DIALOGS
from vlmconsole.text.numbers import change, figure
from vlmconsole.text.plain import one_line

SHOWN = (("ttft_s.p50", "TTFT p50"), ("throughput_tok_s", "throughput"))  # what a line has room for
UNDECIDED = "? Too few requests to tell the change from chance · Enter shows the interval."
WIDE = 30  # columns that one figure takes


class SweepSheet(ModalScreen[None]):
    """Enter opens a pair; `d` takes the one condition in which they all differ for the experiment."""

    CSS_PATH = DIALOGS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "cancel", "back", show=False),
        Binding("d", "experiment", "treat this difference as the variable", show=False),
        old_binding("x", "experiment", "d"),
        Binding("j", "move(1)", "down", show=False),
        Binding("k", "move(-1)", "up", show=False),
    ]

    def __init__(self, comparison: SweepComparison) -> None:
        super().__init__(classes="reader")
        self._found = comparison
        self._only: str | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet"):
            yield Static(id="sweeps-head")
            yield OptionList(compact=True, markup=False, id="sweeps")
            yield Static(id="sweeps-alone")
            yield Static(id="sweeps-keys")

    def on_mount(self) -> None:
        self._draw()
        self.query_one(OptionList).focus()

    def _draw(self) -> None:
        comparison = self._found
        self.query_one("#sweeps-head", Static).update(
            Content.assemble(
                ("compare two sweeps", "bold"),
                *(
                    part
                    for name, run in (("a", comparison.a), ("b", comparison.b))
                    for part in (f"\n{name} ", one_line(run, 100))
                ),
                ("\n\n✓ " if comparison.comparable else "\n\n✗ ", "" if comparison.comparable else "$error"),
                (comparison.sentence(), "" if comparison.comparable else "$error"),
                (f"\n✓ {COMPARABLE_MEANS} {UNDECIDED}\n", "$muted"),
            )
        )
        names = max((cell_len(one_line(pair.name, 40)) for pair in comparison.pairs), default=4)
        listing = self.query_one(OptionList)
        at = listing.highlighted
        listing.clear_options()
        listing.add_options([Option(_line(pair, names)) for pair in comparison.pairs])
        listing.highlighted = (at or 0) if comparison.pairs else None
        alone = Content("\n").join(Content(f"not compared: {one_line(line, 300)}") for line in comparison.alone)
        self.query_one("#sweeps-alone", Static).update(alone.stylize("$muted"))
        keys = [("Esc", "$accent"), (" back   ", "$muted"), ("Enter", "$accent"), (" compare this pair", "$muted")]
        if self._one_difference:
            keys += [("   d", "$accent"), (f" treat {self._label} as the variable", "$muted")]
        self.query_one("#sweeps-keys", Static).update(Content.assemble(*keys))

    @property
    def _one_difference(self) -> str:
        """The key of the one condition in which refused pairs differ, "" when there are several."""
        pairs = self._found.pairs
        keys = {
            difference.key for pair in pairs for difference in pair.comparison.differs if not pair.comparison.comparable
        }
        return keys.pop() if len(keys) == 1 and not any(pair.comparison.invalid for pair in pairs) else ""

    @property
    def _label(self) -> str:
        differs = (difference for pair in self._found.pairs for difference in pair.comparison.differs)
        return next(difference.label for difference in differs if difference.key == self._one_difference)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        pair = self._found.pairs[event.option_index]
        self.app.push_screen(ComparisonSheet(pair.a, pair.b, self._only))

    def action_experiment(self) -> None:
        """The twin of `--only KEY`."""
        if key := self._one_difference:
            self._only = key
            self._found = self._found.under(key)
            self._draw()

    def action_move(self, by: int) -> None:
        listing = self.query_one(OptionList)
        (listing.action_cursor_down if by > 0 else listing.action_cursor_up)()

    def action_cancel(self) -> None:
        self.dismiss(None)


def _line(pair: CellPair, names: int) -> Content:
    """One pair: its figures and their change, or what differs."""
    name = one_line(pair.name, 40)
    start = (f"{name}{' ' * (names - cell_len(name))}  ", "")
    if not pair.comparison.comparable:
        reasons = [*pair.comparison.invalid, *(difference.label for difference in pair.comparison.differs)]
        return Content.assemble(start, ("✗ ", "$error"), (one_line("; ".join(reasons), 200), "$muted"))
    rows = {row.key: row for row in pair.rows}
    parts = [_figure(label, rows[key]) for key, label in SHOWN if key in rows]
    return Content.assemble(start, ("✓ ", "$muted"), *parts)


def _figure(label: str, row: ComparedFigure) -> Content:
    changed = "" if row.change is None else f" {change(row.change)}{' ?' if row.undecided else ''}"
    said = Content.assemble(
        (f"{label} ", "$muted"),
        f"{figure(row.a)} → {figure(row.b)} {row.unit}",
        (changed, "" if row.undecided else "bold"),
    )
    return Content.assemble(said, " " * max(2, WIDE - said.cell_length))
