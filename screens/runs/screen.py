"""The runs screen: the runs │ the chosen one's figures. Each act is the twin of a `vlmconsole runs` command."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from vlmconsole.compare.evaluations import compare_evaluations, evaluated_side
from vlmconsole.compare.runs import ComparedSide, sides
from vlmconsole.compare.sweeps import compare_sweeps, is_sweep
from vlmconsole.compare.trainings import compare_trainings, family, refusal
from vlmconsole.desks.opened_run import OpenedRun, Opener, OpenTarget, evidence
from vlmconsole.desks.runs import RunLine, RunsBoard, Shelf
from vlmconsole.errors import LabError
from vlmconsole.reports.save import save
from vlmconsole.runs.folder import RunFolder
from vlmconsole.screens.background import in_background
from vlmconsole.screens.keys import with_keys
from vlmconsole.screens.looking import LookingScreen
from vlmconsole.screens.paned import Pane
from vlmconsole.screens.runs.comparison import ComparisonSheet
from vlmconsole.screens.runs.evaluation_comparison import EvaluationSheet
from vlmconsole.screens.runs.figures import RunFigures
from vlmconsole.screens.runs.head import head
from vlmconsole.screens.runs.sweep_comparison import SweepSheet
from vlmconsole.screens.runs.table import RunTable
from vlmconsole.screens.runs.training_comparison import TrainingSheet
from vlmconsole.screens.widgets.dialogs import Choose, Reader
from vlmconsole.screens.widgets.item_list import ItemList
from vlmconsole.screens.widgets.said import Said
from vlmconsole.text.numbers import figure
from vlmconsole.text.plain import inert, one_line

FORMS = (
    ("html", "HTML", "report with every table and plot, one page"),
    ("csv", "CSV", "one row per cell, pair, step or sample"),
    ("json", "JSON", "settings, conditions, summary, seal, verdict"),
)
_OF_A_RUN = frozenset({"open", "mark", "export", "verify", "folder"})
#: what is marked for a comparison: a run's name, and a cell of it or "" for the run as a whole
Mark = tuple[str, str]


class RunsScreen(LookingScreen[tuple[Shelf, Opener]]):
    """See keys.py for its keys."""

    ENTRY = "runs"
    PANES = (Pane("Runs", "runs"), Pane("Figures", "run-side"))
    CSS_PATH = "runs.tcss"
    table: RunTable

    def __init__(self) -> None:
        super().__init__()
        self.table = RunTable(self.console.clock, id="runs")
        self.head = Said(id="run-head")
        self.figures = RunFigures()
        self.board = RunsBoard()
        self.opened: OpenedRun | None = None
        self.marks: tuple[Mark, ...] = ()
        self.words = ""

    def compose_panes(self) -> Iterable[Widget]:
        with Horizontal(classes="panes"):
            yield self.table
            with Vertical(id="run-side"):
                yield from (self.head, self.figures)

    # -- looking -------------------------------------------------------------------------------------------

    def open_desk(self) -> tuple[Shelf, Opener]:
        return Shelf(self.console.lab.places), Opener(self.console.lab.places)

    async def look_once(self) -> None:
        words, chosen = self.words, self.row.name if self.row else None
        board, opened = await self.in_thread(lambda desk: _read(*desk, words, chosen))
        self.board = board
        had = self.row
        self.draw_table()
        row = self.row
        if row is not None and (opened is None or opened.name != row.name):
            self._blank()
            self.look()  # the cursor went on meanwhile
            return
        self.opened = opened
        self.draw_run()
        if (had is None) != (row is None):
            self.refresh_bindings()

    def show_fault(self, error: LabError | OSError) -> None:
        hint = error.hint if isinstance(error, LabError) else str(self.console.lab.places.runs)
        message = error.message if isinstance(error, LabError) else str(error.strerror)
        self.table.show_fault("Cannot read the runs", message, hint)

    def draw_table(self) -> None:
        """The table, with what is marked."""
        marked = tuple(dict.fromkeys(name for name, _ in self.marks))
        comparing = ""
        if self.marks:
            comparing = f"{len(self.marks)} marked" + (
                with_keys(": {runs.compare} compares") if len(self.marks) == 2 else ""
            )
        self.table.show(self.board, self.words, marked, comparing)

    def draw_run(self) -> None:
        """The chosen run's head and figures."""
        row = self.row
        state = self.opened.told if self.opened is not None else None
        self.head.say(head(row, state, self.console.clock()))
        cells = tuple(cell for name, cell in self.marks if row is not None and name == row.name)
        self.figures.show(self.opened if row is not None else None, cells)

    # -- parts ---------------------------------------------------------------------------------------------

    @property
    def row(self) -> RunLine | None:
        """The chosen run's line."""
        return self.table.rows.chosen

    def run_folder(self) -> RunFolder | None:
        """Return the chosen run."""
        return RunFolder(self.row.path) if self.row is not None else None

    def on_item_list_chosen(self, event: ItemList.Chosen) -> None:
        event.stop()
        self._blank()
        self.look()

    def _blank(self) -> None:
        """The chosen run's head, which is known at once, over no figures: another run's would pass for its own."""
        if self.row is not None and (self.opened is None or self.opened.name != self.row.name):
            self.opened = None
            self.head.say(head(self.row, None, self.console.clock()))
            self.figures.show(None)

    def on_filtered_table_filtered(self, event: RunTable.Filtered) -> None:
        event.stop()
        self.words = event.words
        self.look()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return what has no object is off, and gone from the footer."""
        if action in _OF_A_RUN and self.row is None:
            return False
        if action == "compare" and not self.marks:
            return False
        return super().check_action(action, parameters)

    def action_move(self, by: int) -> None:
        lines = self.figures if self.pane == 1 else self.table.rows
        lines.choose(lines.cursor + by)

    def action_jump(self, by: int) -> None:
        """. and , : from part to part of the figures."""
        self.go_to_pane(1)
        self.figures.jump(by)

    def _complain(self, error: LabError) -> None:
        self.notify(error.full_message, severity="error", markup=False, timeout=10)

    # -- what is behind a figure ---------------------------------------------------------------------------

    def action_open(self) -> None:
        """Enter: from the runs to the figures; on a figure, its conditions, definitions and raw requests."""
        if self.row is None:
            return
        if self.pane == 0:
            self.go_to_pane(1)
            return
        in_background(self, partial(self._open, self.figures.target), "open", exclusive=True)

    async def _open(self, target: OpenTarget) -> None:
        run, row = self.run_folder(), self.row
        if run is None or row is None:
            return
        page = await asyncio.to_thread(evidence, run, target)
        name = f" · {one_line(target.name, 60)}" if target.name else ""
        number = f" · request {target.index}" if target.kind == "request" else ""
        shown = [(heading, inert(text)) for heading, text in page]
        self.app.push_screen(Reader(f"{row.preset}{name}{number}", shown))

    def on_item_list_opened(self, event: ItemList.Opened) -> None:
        event.stop()
        self.action_open()

    def on_run_figures_clicked(self, event: RunFigures.Clicked) -> None:
        event.stop()
        self.action_open()

    # -- comparing -----------------------------------------------------------------------------------------

    def action_mark(self) -> None:
        """Space: this run, or the cell that the cursor stands on; the oldest of three marks goes."""
        row = self.row
        if row is None:
            return
        target = self.figures.target
        cell = target.name if self.pane == 1 and target.kind in ("cell", "request") else ""
        mark = (row.name, cell)
        kept = tuple(other for other in self.marks if other != mark)
        self.marks = kept if mark in self.marks else (*kept, mark)[-2:]
        self.draw_table()
        self.draw_run()
        self.refresh_bindings()
        if self.pane == 0 and mark in self.marks:
            self.action_move(1)

    def action_unmark(self) -> None:
        """u: nothing is marked any more."""
        self.marks = ()
        self.draw_table()
        self.draw_run()
        self.refresh_bindings()

    def action_compare(self) -> None:
        """b: the two that are marked, or the marked one with the chosen one."""
        marks = list(self.marks)
        if len(marks) == 1 and self.row is not None and self.row.name != marks[0][0]:
            marks.append((self.row.name, ""))
        if len(marks) < 2:
            self.notify("mark two runs or cells with Space, then compare", markup=False)
            return
        in_background(self, partial(self._compare, marks), "compare", exclusive=True)

    async def _compare(self, marks: list[Mark]) -> None:
        names = [name for name, _ in marks]
        if await self._compare_trainings(names):
            return
        if not any(cell for _, cell in marks) and await self._compare_sweeps(names):
            return
        chosen: list[ComparedSide] = []
        alike = ""  # of two sweeps, the cell of the first is compared with the second's of that name
        for name, cell in marks:
            try:
                measured = await asyncio.to_thread(sides, RunFolder(self.console.lab.places.runs / name))
            except LabError as error:
                self._complain(error)
                return
            side = await self._one_of(name, cell or alike, measured)
            if side is None:
                return
            chosen.append(side)
            alike = side.name.removeprefix(f"{name}:")
        first, second = chosen
        self.app.push_screen(ComparisonSheet(first, second))

    async def _compare_trainings(self, names: list[str]) -> bool:
        """Two trainings, or why a training is compared with nothing else; False where there is none."""
        first, second = (RunFolder(self.console.lab.places.runs / name) for name in names)
        why = await asyncio.to_thread(refusal, first, second)
        if why:
            self.notify(why, severity="warning", markup=False, timeout=12)
            return True
        kind = await asyncio.to_thread(family, first)
        if kind == "evaluation":
            return await self._compare_evaluations(first, second)
        if kind != "training":
            return False
        try:
            comparison = await asyncio.to_thread(compare_trainings, first, second)
        except LabError as error:
            self._complain(error)
            return True
        self.app.push_screen(TrainingSheet(comparison, lambda only: compare_trainings(first, second, only)))
        return True

    async def _compare_evaluations(self, first: RunFolder, second: RunFolder) -> bool:
        """Two evaluations, example by example."""
        try:
            a, b = [await asyncio.to_thread(evaluated_side, run) for run in (first, second)]
            comparison = await asyncio.to_thread(compare_evaluations, a, b)
        except LabError as error:
            self._complain(error)
            return True
        self.app.push_screen(EvaluationSheet(comparison, lambda only: compare_evaluations(a, b, only)))
        return True

    async def _compare_sweeps(self, names: list[str]) -> bool:
        """Two whole sweeps, cell by cell; False when they are not two."""
        first, second = (RunFolder(self.console.lab.places.runs / name) for name in names)
        if not await asyncio.to_thread(lambda: is_sweep(first) and is_sweep(second)):
            return False
        try:
            comparison = await asyncio.to_thread(compare_sweeps, first, second)
        except LabError as error:
            self._complain(error)
            return True
        self.app.push_screen(SweepSheet(comparison))
        return True

    async def _one_of(self, name: str, cell: str, candidates: list[ComparedSide]) -> ComparedSide | None:
        """The marked cell, the only one, or the one that is chosen now."""
        by_name = {side.name.removeprefix(f"{name}:"): side for side in candidates}
        if len(candidates) == 1:
            return candidates[0]
        if cell in by_name:
            return by_name[cell]
        options = [(key, one_line(key, 40), _figures(side)) for key, side in by_name.items()]
        key = await self.app.push_screen_wait(Choose(f"Choose a cell of {one_line(name, 60)}", options))
        return by_name.get(key) if key is not None else None

    # -- export, verify ------------------------------------------------------------------------------------

    def action_export(self) -> None:
        """e: the marked runs, else the chosen one."""
        in_background(self, self._export, "export", exclusive=True)

    async def _export(self) -> None:
        names = list(dict.fromkeys(name for name, _ in self.marks)) or ([self.row.name] if self.row else [])
        if not names:
            return
        what = f"{len(names)} runs" if len(names) > 1 else one_line(names[0], 50)
        form = await self.app.push_screen_wait(Choose(f"Save {what} as", FORMS))
        if form is None:
            return
        places = self.console.lab.places
        try:
            path = await asyncio.to_thread(save, [RunFolder(places.runs / name) for name in names], places, form)
        except LabError as error:
            self._complain(error)
            return
        self.announce_saved(path)

    def action_verify(self) -> None:
        """v: hash everything now."""
        in_background(self, self._verify, "verify", exclusive=True)

    async def _verify(self) -> None:
        row = self.row
        if row is None:
            return
        check = await self.in_thread(lambda desk: desk[0].verify(row.name))
        message = f"{row.preset}: {check.status}\n{check.why}"
        harmless = check.status in ("intact", "not sealed")
        self.notify(message, severity="information" if harmless else "error", markup=False, timeout=8)
        self.look()

    def action_folder(self) -> None:
        """o: the run's folder."""
        if self.row is not None:
            self.open_folder(self.row.path)


def _read(shelf: Shelf, opener: Opener, words: str, chosen: str | None) -> tuple[RunsBoard, OpenedRun | None]:
    """One look, in its thread."""
    board = shelf.read(words)
    names = [line.name for line in board.lines]
    at = names.index(chosen) if chosen in names else 0
    return board, opener.read(RunFolder(board.lines[at].path)) if board.lines else None


def _figures(side: ComparedSide) -> str:
    """What tells the cells of one run apart."""
    c, b = side.conditions.client_concurrency, side.conditions.running_limit
    parts = [f"C {c}" if c is not None else "", f"B {b}" if b is not None else "B unknown"]
    ttft = side.summary.get("ttft_s")
    if isinstance(ttft, dict):
        parts.append(f"TTFT p50 {figure(ttft.get('p50'))} s")
    return " · ".join(filter(None, [*parts, "INVALID" if side.invalid else ""]))
