"""The runs screen's furniture: the runs │ the chosen one's figures. It looks every other second while it is seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Input, Static

from vlmconsole.desks.opened_run import Opened, Opener
from vlmconsole.desks.runs import Board, Line, Shelf
from vlmconsole.errors import LabError
from vlmconsole.runs.folder import RunFolder
from vlmconsole.screens.keys import bindings, reading_actions
from vlmconsole.screens.looking import LookingScreen
from vlmconsole.screens.runs.figures import RunFigures
from vlmconsole.screens.runs.head import head
from vlmconsole.screens.runs.table import RunRows, RunTable
from vlmconsole.screens.table import SCREENS
from vlmconsole.screens.widgets.keyline import KeyLine
from vlmconsole.screens.widgets.said import Said
from vlmconsole.screens.widgets.topbar import TopBar

_READING = reading_actions("runs")
_OF_A_RUN = frozenset({"open", "mark", "export", "verify"})
PANES = (("Runs", "runs"), ("Figures", "run-side"))
PERIOD = 2.0  # seconds between two looks
T = TypeVar("T")
#: what is marked for a comparison: a run's name, and a cell of it or "" for the run as a whole
Mark = tuple[str, str]


class RunsDesk(LookingScreen):
    """Shows the runs. Doing something with them is added by the class above."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(("anywhere", "reading"), "runs")
    CSS_PATH = "runs.tcss"
    AUTO_FOCUS = "RunRows"

    def __init__(self) -> None:
        super().__init__()
        self.table = RunTable(self.console.clock, id="runs")
        self.head = Said(id="run-head")
        self.figures = RunFigures()
        self.board = Board()
        self.opened: Opened | None = None
        self.marks: tuple[Mark, ...] = ()
        self.words = ""
        self.pane = 0
        self._shelf: Shelf | None = None
        self._opener: Opener | None = None
        self._thread = ThreadPoolExecutor(1, "runs")  # what is remembered of the runs belongs to one thread

    def compose(self) -> ComposeResult:
        yield TopBar([(str(entry.number), entry.title) for entry in SCREENS], "Runs")
        yield Static(id="panetabs")
        with Horizontal(id="run-panes"):
            yield self.table
            with Vertical(id="run-side"):
                yield self.head
                yield self.figures
        yield KeyLine()

    def on_mount(self) -> None:
        self.begin_looking(PERIOD)
        self.go_to_pane(0)
        self.look()

    def on_unmount(self) -> None:
        self._thread.shutdown(wait=False)

    # -- looking -------------------------------------------------------------------------------------------

    async def in_thread(self, call: Callable[[Shelf, Opener], T]) -> T:
        """Let `call` use what is remembered of the runs, in its thread. Raises LabError and OSError."""

        def run() -> T:
            if self._shelf is None or self._opener is None:
                self._shelf, self._opener = Shelf(self.console.lab.places), Opener(self.console.lab.places)
            return call(self._shelf, self._opener)

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    async def _look(self) -> None:
        try:
            while True:
                self._once_more = False
                await self._look_once()
                if not self._once_more:
                    return
        finally:
            self._looking = False

    async def _look_once(self) -> None:
        words, chosen = self.words, self.row.name if self.row else None
        try:
            board, opened = await self.in_thread(lambda shelf, opener: _read(shelf, opener, words, chosen))
        except (LabError, OSError) as error:
            hint = error.hint if isinstance(error, LabError) else str(self.console.lab.places.runs)
            self.table.show_fault(error.message if isinstance(error, LabError) else str(error.strerror), hint)
            return
        self.board = board
        had = self.row
        self.draw_table()
        row = self.row
        if row is not None and (opened is None or opened.name != row.name):
            self._once_more = True  # the cursor went on meanwhile
            self._blank()
            return
        self.opened = opened
        self.draw_run()
        if (had is None) != (row is None):
            self.refresh_bindings()

    def draw_table(self) -> None:
        """The table, with what is marked."""
        marked = tuple(dict.fromkeys(name for name, _ in self.marks))
        comparing = ""
        if self.marks:
            comparing = f"{len(self.marks)} marked" + (": c compares" if len(self.marks) == 2 else "")
        self.table.show(self.board, self.words, marked, comparing)

    def draw_run(self) -> None:
        """The chosen run's head and figures."""
        row = self.row
        told = self.opened.told if self.opened is not None else None
        self.head.say(head(row, told, self.console.clock()))
        cells = tuple(cell for name, cell in self.marks if row is not None and name == row.name)
        self.figures.show(self.opened if row is not None else None, cells)

    # -- parts ---------------------------------------------------------------------------------------------

    @property
    def row(self) -> Line | None:
        """The chosen run's line."""
        return self.table.rows.chosen

    @property
    def typing(self) -> bool:
        """Is a text being typed? Then single letters are letters."""
        return isinstance(self.focused, Input)

    def run_folder(self) -> RunFolder | None:
        """The chosen run."""
        return RunFolder(self.row.path) if self.row is not None else None

    def on_run_rows_chosen(self, event: RunRows.Chosen) -> None:
        event.stop()
        self._blank()
        self.look()

    def _blank(self) -> None:
        """The chosen run's head, which is known at once, over no figures: another run's would pass for its own."""
        if self.row is not None and (self.opened is None or self.opened.name != self.row.name):
            self.opened = None
            self.head.say(head(self.row, None, self.console.clock()))
            self.figures.show(None)

    def on_run_table_filtered(self, event: RunTable.Filtered) -> None:
        event.stop()
        self.words = event.words
        self.look()

    # -- moving about --------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Single-letter keys are off, and gone from the footer, while a text is being typed."""
        if action in _READING and self.typing:
            return False
        if action in _OF_A_RUN and self.row is None:
            return False
        if action == "compare" and not self.marks:
            return False
        return super().check_action(action, parameters)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        self.refresh_bindings()
        for number, (_, name) in enumerate(PANES):
            if any(part.id == name for part in event.widget.ancestors) and number != self.pane:
                self._mark_pane(number)

    def action_pane(self, by: int) -> None:
        self.go_to_pane((self.pane + by) % len(PANES))

    def go_to_pane(self, index: int) -> None:
        """Show (on a narrow screen) and focus one of PANES."""
        self._mark_pane(index)
        (self.table.rows, self.figures)[index].focus()

    def _mark_pane(self, index: int) -> None:
        self.pane = index
        pieces: list[Any] = []
        for number, (title, name) in enumerate(PANES):
            self.query_one(f"#{name}").set_class(number == index, "-current")
            pieces += [(title, "bold" if number == index else "$faint"), "   "]
        self.query_one("#panetabs", Static).update(Content.assemble(*pieces, ("[ ] panes", "$faint")))

    def action_move(self, by: int) -> None:
        lines = self.figures if self.pane == 1 else self.table.rows
        lines.choose(lines.cursor + by)

    def action_page(self, by: int) -> None:
        lines = self.figures if self.pane == 1 else self.table.rows
        self.action_move(by * max(1, lines.size.height - 1))

    def action_jump(self, by: int) -> None:
        """. and , : from part to part of the figures."""
        self.go_to_pane(1)
        self.figures.jump(by)

    def action_large(self) -> None:
        """z: the pane one is in, over the whole screen, and back."""
        self.toggle_class("-large")


def _read(shelf: Shelf, opener: Opener, words: str, chosen: str | None) -> tuple[Board, Opened | None]:
    """One look, in its thread."""
    board = shelf.read(words)
    names = [line.name for line in board.lines]
    at = names.index(chosen) if chosen in names else 0
    return board, opener.read(RunFolder(board.lines[at].path)) if board.lines else None
