"""The queue's table: the cursor stays on its job however the rows move; only lines that changed are drawn anew."""

from __future__ import annotations

import time
from collections.abc import Callable

from textual.content import Content
from textual.message import Message

from vlmconsole.desks.queue import QueueBoard, QueueRow
from vlmconsole.queue.view import UNATTENDED
from vlmconsole.screens.jobs.rows import Columns
from vlmconsole.screens.keys import key_of, with_keys
from vlmconsole.screens.widgets.filtered_table import FilteredTable
from vlmconsole.screens.widgets.item_list import ItemList
from vlmconsole.text.counts import many


def empty_queue() -> Content:
    """Return what to do where there is no job yet."""
    return Content.assemble(
        ("No jobs yet", "bold"),
        ("\n\nPress ", "$muted"),
        (key_of("jobs.new"), "$accent"),
        (" to pick a preset: a training, a sweep,\nan evaluation. Jobs keep running after you", "$muted"),
        ("\nclose the console.\n\nFrom a shell:\n", "$muted"),
        "vlmconsole jobs add sft-expand-tiny",
    )


class JobRows(ItemList[QueueRow]):
    """The lines of the queue."""

    class Wanted(Message):
        """The cursor is near the last of the rows that were read."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(id="job-rows")
        self._clock = clock

    def key(self, item: QueueRow) -> int:
        return item.job.id

    def differs(self, before: QueueRow, now: QueueRow) -> bool:
        return before != now or now.progress is not None

    def header(self, width: int) -> Content:
        return self._columns(width).header()

    def line(self, y: int, width: int) -> Content:
        return self._columns(width).row(self.items[y], self._clock())

    def _columns(self, width: int) -> Columns:
        longest = max((row.job.id for row in self.items), default=0)
        return Columns(width, max(3, len(str(longest))))

    def choose(self, index: int) -> None:
        super().choose(index)
        if self.count and self.cursor >= self.count - 5:
            self.post_message(self.Wanted())


class JobTable(FilteredTable[JobRows]):
    """The queue: counts, the filter, the columns and the rows."""

    def __init__(self, clock: Callable[[], float] = time.time, *, id: str) -> None:
        super().__init__(JobRows(clock), "number, name, kind or state", empty_queue(), id=id)

    def show(self, board: QueueBoard, words: str) -> None:
        self.rows.show(board.rows)
        named = not self.screen.has_class("-narrow")  # there the pane's tab says it
        self.show_head(_counts(board, words, named=named), empty=not board.rows and not words.strip())


def _counts(board: QueueBoard, words: str, *, named: bool) -> Content:
    pieces: list[Content | str | tuple[str, str]] = [(" Queue", "bold"), "  "] if named else [" "]
    running, queued = board.count("running", "starting"), board.count("queued")
    failed = board.count("failed", "lost")
    parts = [(f"{running} running", ""), (f"{queued} queued", "")]
    parts += [(f"{failed} failed", "$error")] if failed else []
    parts += [(with_keys("paused: no new jobs will start · {jobs.drain} resumes"), "$warning")] if board.drained else []
    if not board.supervised and (running or (queued and not board.drained)):
        parts.insert(0, (UNATTENDED, "$warning"))
    for index, (text, style) in enumerate(parts):
        pieces += [(" · ", "$faint") if index else "", (text, style or "$muted")]
    if words.strip():
        pieces.append((f"  {many(len(board.rows), 'match', 'matches')}", "$accent"))
    elif board.more:
        pieces.append((f"  {board.more} more below", "$faint"))
    return Content.assemble(*pieces)
