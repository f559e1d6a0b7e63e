"""The command palette: every key of the current screen, found by what it does and by other words for it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from textual.app import App
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.screen import Screen
from textual.types import IgnoreReturnCallbackType

from vlmconsole.screens.console import console_of
from vlmconsole.screens.keys import keys_of, shown_keys
from vlmconsole.screens.table import SCREENS

#: Columns beside the lines: borders, padding, a scrollbar.
MARGIN = 8


class PaletteEntry(NamedTuple):
    """A line of the palette; `words` are searched, not shown."""

    title: str
    keys: str
    run: IgnoreReturnCallbackType
    words: str = ""


def commands(app: App[Any], screen: Screen[Any]) -> Iterator[PaletteEntry]:
    """Yield every key of the current screen by name, and the other screens."""
    for entry in SCREENS:
        if entry.name != app.current_mode:
            yield PaletteEntry(f"Go to {entry.title}", f"F{entry.number}", partial(app.switch_mode, entry.name))
    remapped = console_of(app).remapped
    for key in keys_of(app.current_mode):
        if key.action not in ("send", "newline", "leave", "app.command_palette"):
            target = app if key.action.startswith("app.") else screen
            action = key.action.removeprefix("app.")
            run = partial(app.run_action, action, default_namespace=target)
            words = f"{key.label} {key.words}"
            yield PaletteEntry(key.help, shown_keys(key, remapped), partial(app.call_later, run), words)


class KeyCommands(Provider):
    """Textual's view of :func:`commands`: a line for each, its key at the right."""

    async def discover(self) -> Hits:
        for command in sorted(commands(self.app, self.screen), key=lambda command: command.title):
            yield DiscoveryHit(self._line(Content(command.title), command.keys), command.run, command.title)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for command in commands(self.app, self.screen):
            if score := max(matcher.match(command.title), matcher.match(command.words)):
                line = self._line(matcher.highlight(command.title), command.keys)
                yield Hit(score, line, command.run, text=command.title)

    def _line(self, title: Content, keys: str) -> Content:
        room = max(20, self.app.size.width - MARGIN - len(keys) - 2)
        return Content.assemble(title.truncate(room, ellipsis=True, pad=True), ("  " + keys, "$text-muted"))
