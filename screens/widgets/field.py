"""Text fields whose keys work in the order in which they were pressed.

Textual (8.2.8) has a letter inserted by the field itself, but a Backspace or Ctrl+U go all the way up to the app and
back again. Where keys come in a burst, as over a slow line or beside a busy machine, the letters overtake them: what
was typed after a Ctrl+U is then deleted by it.
"""

from __future__ import annotations

from textual import events
from textual.widget import Widget
from textual.widgets import Input


class InOrder:
    """Beside a text widget: the keys of its own bindings act at once, as its letters do.

    No Widget itself: Textual takes styles and bindings over from the first widget among the bases alone.
    """

    async def _on_key(self, event: events.Key) -> None:
        assert isinstance(self, Widget)
        for binding in self._bindings.key_to_bindings.get(event.key, ()):
            if not event.is_printable and await self.app.run_action(binding.action, self):
                event.stop()
                event.prevent_default()
                return


class Field(InOrder, Input):
    """A line of text."""
