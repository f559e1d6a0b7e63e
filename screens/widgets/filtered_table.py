"""A list with a head, a filter, columns, and what stands there while it is empty."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input

from vlmconsole.screens.widgets.field import Field
from vlmconsole.screens.widgets.item_list import ItemList
from vlmconsole.screens.widgets.said import Said
from vlmconsole.text.plain import inert

Rows = TypeVar("Rows", bound=ItemList[Any])


class FilteredTable(Vertical, Generic[Rows]):
    """Posts `Filtered` with each letter of the filter; what is found is shown by the screen."""

    DEFAULT_CSS = """
    FilteredTable { height: 1fr; }
    FilteredTable .table-head { height: 1; margin: 0 0 1 0; text-wrap: nowrap; text-overflow: ellipsis; }
    FilteredTable .table-filter { margin: 0 1 1 1; display: none; }
    FilteredTable.-filtering .table-filter { display: block; }
    FilteredTable .table-columns { height: 1; text-wrap: nowrap; }
    FilteredTable .table-columns.-none { display: none; }
    FilteredTable .table-empty { width: 1fr; height: 1fr; padding: 4 6; display: none; }
    FilteredTable.-empty .table-empty { display: block; }
    FilteredTable.-empty .table-columns, FilteredTable.-empty LineView { display: none; }
    """

    class Filtered(Message):
        def __init__(self, words: str) -> None:
            super().__init__()
            self.words = words

    def __init__(self, rows: Rows, placeholder: str, empty: Content, *, id: str) -> None:
        """`empty` is what stands there where there is nothing at all."""
        super().__init__(id=id)
        self.rows = rows
        self.head, self.columns = Said(classes="table-head"), Said(classes="table-columns")
        self.field = Field(placeholder=placeholder, compact=True, classes="table-filter")
        self.nothing = Said(classes="table-empty")
        self._empty = empty

    def compose(self) -> ComposeResult:
        yield from (self.head, self.field, self.columns, self.rows, self.nothing)

    @property
    def filtering(self) -> bool:
        """Is the filter in sight?"""
        return self.has_class("-filtering")

    def show_head(self, head: Content, *, empty: bool) -> None:
        """Counts and the like; `empty`: there is nothing that a filter could have hidden."""
        self._put(self._empty, shown=empty)
        self.head.say(head)
        self._draw_columns()

    def show_fault(self, title: str, message: str, hint: str = "") -> None:
        """It cannot be read: that in the list's place, since an empty or old one would be untrue."""
        self.rows.show(())
        self.head.say(Content(f" {title}").stylize("$error"))
        self._put(Content.assemble((f"✗ {inert(message)}", "$error"), f"\n\n{inert(hint)}" if hint else ""), shown=True)

    def _put(self, text: Content, *, shown: bool) -> None:
        self.nothing.say(text)
        self.set_class(shown, "-empty")

    def begin_filter(self) -> None:
        self.add_class("-filtering")
        self.field.focus()

    def end_filter(self) -> None:
        """Away with it, and with its words."""
        self.field.value = ""
        self.remove_class("-filtering")

    def on_resize(self) -> None:
        self._draw_columns()

    def _draw_columns(self) -> None:
        header = self.rows.header(self.rows.scrollable_content_region.width or self.size.width)
        self.columns.set_class(not header, "-none")
        self.columns.say(header)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.Filtered(event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.rows.focus()
