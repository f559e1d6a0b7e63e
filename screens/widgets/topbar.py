"""The first line of every screen: where one is, and whether the server can answer."""

from __future__ import annotations

import re

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Static

from vlmconsole.screens.theme import painted
from vlmconsole.text.plain import one_line
from vlmconsole.text.signs import sign_of


def fitted(text: str, room: int) -> str:
    """In `room` cells; what ends on seconds is cut before them: they are what moves while a server starts."""
    seconds = re.search(r" \d+ s$", text)
    tail = seconds.group() if seconds and len(seconds.group()) < room - 4 else ""
    return one_line(text[: len(text) - len(tail)], room - len(tail)) + tail


class TopBar(Horizontal):
    """Tabs to the left, server status to the right; the status gives way first when the line is short."""

    def __init__(self, tabs: list[tuple[str, str]], current: str) -> None:
        super().__init__(id="topbar")
        self._tabs, self._current = tabs, current
        self._status: tuple[str, str, str] = ("stopped", "", "")

    def compose(self) -> ComposeResult:
        yield Static(id="tabs")
        yield Static(id="status")

    def on_mount(self) -> None:
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def show(self, state: str, short: str, long: str) -> None:
        """`state` has a sign; `short` (server and state) and `long` (with model and version) as room allows."""
        self._status = (state, short, long)
        self._draw()

    def _draw(self) -> None:
        if not self.is_mounted:
            return
        state, short, long = self._status
        tabs = self._named(" vlmconsole")
        if tabs.cell_length + Content(short).cell_length + 4 > self.size.width:
            tabs = self._named("")  # a person knows which program this is; whether the server is ready they do not
        if tabs.cell_length + Content(short).cell_length + 7 > self.size.width:
            tabs = self._named("", gap=" ")
        mark, style = painted(sign_of(state))
        room = self.size.width - tabs.cell_length - 4
        text = one_line(long) if long and Content(long).cell_length + 3 <= room else one_line(short)
        status = Content.assemble((text, "$muted"), " ", (mark, style), " ")
        if status.cell_length > room:
            status = Content.assemble((fitted(short, max(8, room - 4)), "$muted"), " ", (mark, style), " ")
        self.query_one("#tabs", Static).update(tabs)
        self.query_one("#status", Static).update(status)

    def _named(self, name: str, gap: str = "  ") -> Content:
        pieces: list[Content | tuple[str, str]] = [(name, "bold"), ("  ", "")] if name else []
        for key, title in self._tabs:
            here = title == self._current
            pieces += [(gap, ""), (key, "$accent" if here else "$faint"), (f" {title}", "bold" if here else "$muted")]
        return Content.assemble(*pieces)
