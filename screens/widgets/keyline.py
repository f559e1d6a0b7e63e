"""The last line: the keys that work right now, as many as fit, never half a one; under a window, the window's."""

from __future__ import annotations

from typing import Any

from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget

from vlmconsole.screens.keys import written


class KeyLine(Widget):
    """Follows the focus; what the table marks for the footer is shown in the table's order."""

    DEFAULT_CSS = """
    KeyLine { dock: bottom; height: 1; width: 1fr; padding: 0 1; }
    """

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._changed)
        self.app.screen_change_signal.subscribe(self, self._changed)

    def _changed(self, screen: Screen[Any]) -> None:
        self.refresh()

    def render(self) -> Content:
        line, seen = Content(""), set()
        for _, binding, enabled, _ in self.app.screen.active_bindings.values():
            if not (binding.show and enabled):
                continue
            act = binding.action, binding.description
            if act in seen:  # several keys of one act: the first is shown
                continue
            seen.add(act)
            shown = binding.key_display or written(binding.key)
            piece = Content.assemble((shown, "$accent"), (f" {binding.description}", "$muted"))
            gap = "   " if line else ""
            if line.cell_length + len(gap) + piece.cell_length > self.size.width:
                break
            line = line + gap + piece
        return line
