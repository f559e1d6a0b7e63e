"""The command palette's entries, from the same table as the keys."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from textual.app import App, SystemCommand
from textual.screen import Screen

from vlmconsole.screens.console import console_of
from vlmconsole.screens.keys import keys_of, shown_keys
from vlmconsole.screens.table import SCREENS


def commands(app: App[Any], screen: Screen[Any]) -> Iterator[SystemCommand]:
    """Every key of the current screen by name, and the other screens."""
    for entry in SCREENS:
        if entry.name != app.current_mode:
            yield SystemCommand(f"Go to {entry.title}", f"F{entry.number}", partial(app.switch_mode, entry.name))
    remapped = console_of(app).remapped
    for key in keys_of(app.current_mode):
        if key.action not in ("send", "newline", "leave", "app.command_palette"):
            target = app if key.action.startswith("app.") else screen
            action = key.action.removeprefix("app.")
            run = partial(app.run_action, action, default_namespace=target)
            yield SystemCommand(key.help, shown_keys(key, remapped), partial(app.call_later, run))
