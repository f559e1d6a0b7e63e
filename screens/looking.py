"""The screens beside the chat: they look now and then, in a thread of their own, and rest while hidden."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from textual.timer import Timer
from textual.widget import Widget

from vlmconsole.errors import LabError
from vlmconsole.runs.folder import write_atomic
from vlmconsole.screens.background import in_background
from vlmconsole.screens.paned import PanedScreen
from vlmconsole.screens.widgets.filtered_table import FilteredTable
from vlmconsole.screens.widgets.lines import LineView

Desk = TypeVar("Desk")
T = TypeVar("T")


class LookingScreen(PanedScreen, Generic[Desk]):
    """Subclasses open their desk (what reads and writes for them), and read and show by `look_once`."""

    AUTO_FOCUS = "ItemList"
    PERIOD: ClassVar[float] = 2.0  # seconds between two looks
    SLOW_PERIOD: ClassVar[float] = 0.0  # on a slow link; 0: the same
    #: The list with the filter, in the first pane, where there is one.
    table: FilteredTable[Any] | None = None

    def __init__(self) -> None:
        super().__init__()
        self._timer: Timer | None = None
        self._looking = self._once_more = False
        self._fault = ""
        self._desk: Desk | None = None
        self._thread = ThreadPoolExecutor(1, self.ENTRY)  # a connection to a database belongs to one thread

    def open_desk(self) -> Desk:
        """Open what the screen reads with. Called in the screen's thread, at its first use. Raises LabError."""
        raise NotImplementedError

    def close_desk(self, desk: Desk) -> None:
        """Close it, in the same thread."""

    async def look_once(self) -> None:
        """Read in the thread, and show. Raises LabError and OSError."""
        raise NotImplementedError

    def show_fault(self, error: LabError | OSError) -> None:
        """Say why nothing could be read; called once while it is the same."""
        raise NotImplementedError

    def on_mount(self) -> None:
        slow = self.SLOW_PERIOD if self.console.lab.settings.slow_link else 0.0
        self._timer = self.set_interval(slow or self.PERIOD, self._tick)
        self.go_to_pane(0)
        self.look()

    def on_unmount(self) -> None:
        self._thread.submit(lambda: self.close_desk(self._desk) if self._desk is not None else None)
        self._thread.shutdown(wait=False)

    def on_screen_suspend(self) -> None:
        if self._timer is not None:
            self._timer.pause()

    def on_screen_resume(self) -> None:
        if self._timer is not None:
            self._timer.resume()
            self.look()

    # -- looking -------------------------------------------------------------------------------------------

    async def in_thread(self, call: Callable[[Desk], T]) -> T:
        """Let `call` use the desk, in its thread. Raises LabError, and what `call` raises."""

        def run() -> T:
            if self._desk is None:
                self._desk = self.open_desk()
            return call(self._desk)

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    def _tick(self) -> None:
        if not self._looking:  # one that is under way is enough
            self.look()

    def look(self) -> None:
        """Look now, in the background; while a look is under way, once more after it."""
        self._once_more = self._looking
        if not self._looking:
            self._looking = True
            in_background(self, self._look, "look")

    async def _look(self) -> None:
        try:
            while True:
                self._once_more = False
                await self.look_once()
                self._fault = ""
                if not self._once_more:
                    return
        except (LabError, OSError) as error:
            if str(error) != self._fault:  # drawn once, not every second
                self._fault = str(error)
                self.show_fault(error)
        finally:
            self._looking = False

    # -- moving about --------------------------------------------------------------------------------------

    @property
    def part(self) -> Widget | None:
        """What the arrows move: what has the focus, else the list (an empty one, hidden meanwhile, has lost it)."""
        return self.focused or (self.table.rows if self.table is not None else None)

    def action_move(self, by: int) -> None:
        part = self.part
        if isinstance(part, LineView):
            part.choose(part.cursor + by)
        elif part is not None:
            part.scroll_relative(y=by, animate=False)

    def action_page(self, by: int) -> None:
        self.action_move(by * max(1, (self.part.size.height if self.part is not None else 10) - 1))

    def action_edge(self, by: int) -> None:
        """To the first or the last line."""
        self.action_move(by * 1_000_000)

    def action_filter(self) -> None:
        """/: narrow the list."""
        if self.table is not None:
            self.go_to_pane(0)
            self.table.begin_filter()

    def action_leave(self) -> None:
        """Esc: out of the filter, out of the large pane, back to the list."""
        table = self.table
        if table is not None and (self.focused is table.field or (table.filtering and self.pane == 0)):
            table.end_filter()
            self.go_to_pane(0)
        elif self.has_class("-large"):
            self.remove_class("-large")
        else:
            self.go_to_pane(0)

    def announce_saved(self, path: Path) -> None:
        """Say where an export lies, and send its path to the clipboard."""
        self.app.copy_to_clipboard(str(path))
        self.notify(f"saved: {path}\npath copied to the clipboard", markup=False, timeout=10)

    def open_folder(self, path: Path) -> None:
        """Open a folder where there is a desktop, and send its path to the clipboard."""
        from vlmconsole.screens.outside import open_outside

        kept = self.console.lab.places.home / "copied.txt"
        write_atomic(kept, str(path))
        # Whether the terminal takes it cannot be known (tmux drops it by default): so a file as well.
        self.app.copy_to_clipboard(str(path))
        how = "path" if open_outside(path) else "opened; path"
        self.notify(f"{path}\n{how} copied, and saved in {kept}", markup=False, timeout=10)
