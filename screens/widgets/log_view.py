"""A job's log, live: read by page, followed at its end, searched and filtered in a thread; never the whole file."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Literal

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input

from vlmconsole.runs import logfile
from vlmconsole.runs.logfile import LogPage, shown
from vlmconsole.screens.background import in_background
from vlmconsole.screens.keys import with_keys
from vlmconsole.screens.widgets.field import Field
from vlmconsole.screens.widgets.lines import LineView
from vlmconsole.screens.widgets.said import Said
from vlmconsole.text.sizes import size

Found = list[tuple[int, bytes]]
SEARCH_PAUSE = 0.15  # seconds: while one types on, only the last state of the words counts


class LogLines(LineView):
    """The lines of a page, or only those that were found; the words are marked wherever they stand."""

    class Reached(Message):
        """The view came to an edge of its page: "older" or "newer" lines are wanted."""

        def __init__(self, edge: Literal["older", "newer"]) -> None:
            super().__init__()
            self.edge = edge

    def __init__(self) -> None:
        super().__init__(id="log-lines")
        self.raws: tuple[bytes, ...] = ()
        self.words = ""
        self.follow = True

    def line(self, y: int, width: int) -> Content:
        text = Content(shown(self.raws[y]))
        if self.words:
            text = text.highlight_regex(re.compile(re.escape(self.words), re.IGNORECASE), style="$accent reverse")
        return text.truncate(width, ellipsis=True)

    def watch_scroll_y(self, old: float, new: float) -> None:
        super().watch_scroll_y(old, new)
        if new < old and new <= 0:
            self.post_message(self.Reached("older"))
        elif new > old and new >= self.max_scroll_y:
            self.post_message(self.Reached("newer"))

    def stay(self) -> None:
        """Be at the end while the end is followed: now, and again once the new lines have their room."""
        if self.follow:
            self.scroll_end(animate=False, force=True, immediate=True)
            self.call_after_refresh(self._stay)

    def _stay(self) -> None:
        if self.follow and self.scroll_offset.y < self.max_scroll_y:
            self.scroll_end(animate=False, force=True, immediate=True)

    def on_resize(self) -> None:
        self.stay()

    def by(self, lines: int) -> None:
        """Scroll; upwards leaves the end of the log."""
        if lines < 0:
            self.follow = False
        self.scroll_relative(y=lines, animate=False, force=True)
        if lines < 0 and self.scroll_offset.y == 0:
            self.post_message(self.Reached("older"))

    def on_mouse_scroll_up(self) -> None:
        self.follow = False


class LogView(Vertical):
    """One log. The screen looks for its end; other pages are read here, in a thread."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._title = Said(id="log-head")
        self.field = Field(
            placeholder="search the log · Enter older · ↓ newer · Esc back", id="log-search", compact=True
        )
        self.lines = LogLines()
        self.page: LogPage | None = None
        self.found: Found = []
        self.at = -1
        self.only = False

    def compose(self) -> ComposeResult:
        yield from (self._title, self.field, self.lines)

    def on_mount(self) -> None:
        self.field.cursor_blink = False
        self.field.display = False
        self.draw_head()

    def grow(self, page: LogPage | None, read_from: LogPage | None) -> None:
        """The end of the log as a look found it, which began when `read_from` was shown; another log begins anew."""
        if self.page is not read_from:  # someone turned the page meanwhile
            return
        same = read_from is not None and page is not None and read_from.path == page.path
        if not same:
            self.forget_search()
            self.follow(True)
        self.show(page, keep=same)

    def show(self, page: LogPage | None, *, keep: bool = True) -> None:
        """Draw another state of the log. `keep`: the lines in sight stay where they are, unless the end is followed."""
        if page is self.page:
            return
        before, self.page = self.page, page
        if self.only:
            self.draw_head()
            return
        lines = self.lines
        moved = _moved(before, page) if keep else 0
        lines.raws = page.lines if page is not None else ()
        if lines.cursor >= 0:
            lines.cursor = lines.cursor + moved if keep else -1
        lines.sized(len(lines.raws))
        if lines.follow:
            lines.stay()
        elif moved:
            lines.scroll_to(y=lines.scroll_offset.y + moved, animate=False, force=True)
        self.draw_head()

    def show_found(self, words: str, matches: Found, *, only: bool) -> None:
        """The matches of `words`; `only`: nothing but them is shown."""
        lines = self.lines
        lines.words, self.found, self.only = words, matches, only
        self.at = min(self.at, len(matches) - 1)
        if only:
            lines.raws = tuple(raw for _, raw in matches)
        elif self.page is not None:
            lines.raws = self.page.lines
        lines.sized(len(lines.raws))
        lines.refresh()
        if only:
            lines.stay()
        self.draw_head()

    def stand_on(self, offset: int) -> None:
        """Bring the line that begins at `offset` into the middle of the view and leave the log's end."""
        lines = self.lines
        lines.follow = False
        if self.page is not None and offset in self.page.offsets:
            y = self.page.offsets.index(offset)
            lines.cursor = y
            lines.scroll_to(y=max(0, y - lines.size.height // 2), animate=False, force=True)
            lines.refresh()
        self.draw_head()

    def follow(self, on: bool) -> None:
        self.lines.follow = on
        self.lines.cursor = -1
        self.lines.stay()
        self.draw_head()

    def draw_head(self) -> None:
        pieces: list[Content | str | tuple[str, str]] = []
        if not self.screen.has_class("-narrow"):  # there the pane's tab says it
            pieces += [(" Log", "bold"), " "]
        page, words = self.page, self.lines.words
        if page is not None and page.size:
            pieces.append((f" {size(page.size)}", "$muted"))
            if page.start and not self.only:
                pieces.append((f" · from {100 * page.start // page.size} %", "$muted"))
        if words:
            place = f"{self.at + 1} of {len(self.found)}" if self.at >= 0 else f"{len(self.found)}"
            pieces.append((f" · “{words}” {place}{', matches only' if self.only else ''}", "$accent"))
        following = self.lines.follow
        pieces.append(
            (
                " · following" if following else with_keys(" · {jobs.last} to follow"),
                "$muted" if following else "$warning",
            )
        )
        self._title.say(Content.assemble(*pieces))

    # -- turning pages -------------------------------------------------------------------------------------

    def move(self, by: int) -> None:
        self.lines.by(by)
        self.draw_head()

    def edge(self, by: int) -> None:
        """To the first line of the file, or to its end, which is followed then."""
        self.follow(by > 0)
        in_background(self, self._turn_to_end if by > 0 else partial(self._turn_to, 0), "page", exclusive=True)

    async def on_log_lines_reached(self, event: LogLines.Reached) -> None:
        event.stop()
        page = self.page
        if page is None or self.only:
            return
        new = await asyncio.to_thread(logfile.older if event.edge == "older" else logfile.newer, page)
        if self.page is page:
            self.show(new)

    async def _turn_to_end(self) -> None:
        page = self.page
        if page is not None and not page.at_end and not self.only:
            self.show(await asyncio.to_thread(logfile.tail, page.path), keep=False)

    async def _turn_to(self, offset: int) -> None:
        """Show the page that holds the line beginning at `offset`, and stand on that line."""
        page = self.page
        if page is None or self.only:
            return
        self.lines.follow = False
        if offset not in page.offsets:
            self.show(await asyncio.to_thread(logfile.around, page.path, offset), keep=False)
        self.stand_on(offset)

    # -- searching -----------------------------------------------------------------------------------------

    def begin_search(self) -> None:
        self.field.display = True
        self.field.focus()

    def end_search(self) -> None:
        self.field.value = ""
        self.field.display = False

    def forget_search(self) -> None:
        """Another log: what was found in the last one means nothing here."""
        self.show_found("", [], only=False)

    def search(self, words: str, *, only: bool) -> None:
        """Mark `words`, and go to the last match; `only`: nothing but the lines with them is shown."""
        in_background(self, partial(self._search, words, only=only), "search", exclusive=True)

    async def _search(self, words: str, *, only: bool) -> None:
        await asyncio.sleep(SEARCH_PAUSE)
        page = self.page
        if page is None:
            return
        matches = await asyncio.to_thread(logfile.search, page.path, words) if words else []
        if self.page is None or self.page.path != page.path:
            return
        self.at = len(matches)
        self.show_found(words, matches, only=only and bool(words))
        await self.step(0)

    async def step(self, by: int) -> None:
        """To another match: -1 towards the beginning of the log, 1 towards its end."""
        if self.found and not self.only:
            self.at = max(0, min(len(self.found) - 1, self.at + by))
            await self._turn_to(self.found[self.at][0])

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.search(event.value, only=self.only)

    async def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        await self.step(-1)

    async def key_down(self) -> None:
        await self.step(1)

    async def key_up(self) -> None:
        await self.step(-1)


def _moved(before: LogPage | None, after: LogPage | None) -> int:
    """By how many lines the old first line moved down, for a view that keeps its place."""
    if before is None or after is None or not before.offsets or before.path != after.path:
        return 0
    first = before.offsets[0]
    if first in after.offsets:
        return after.offsets.index(first)
    if after.offsets and after.offsets[0] in before.offsets:
        return -before.offsets.index(after.offsets[0])
    return 0
