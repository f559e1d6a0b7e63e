"""A list of items: the cursor stays on its item however the lines move, and only lines that changed are drawn anew."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Generic, TypeVar

from textual import events
from textual.content import Content
from textual.message import Message

from vlmconsole.screens.widgets.lines import LineView

T = TypeVar("T")


class ItemList(LineView, Generic[T]):
    """Subclasses say which `key` tells items apart over reads, and what stands on a `line`."""

    class Chosen(Message):
        """The cursor came to stand on another item."""

        def __init__(self, view: ItemList[Any]) -> None:
            super().__init__()
            self.view = view

        @property
        def control(self) -> ItemList[Any]:
            return self.view

    class Opened(Chosen):
        """A line was clicked that was chosen already."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.items: tuple[T, ...] = ()
        self._chosen: Hashable = None

    def key(self, item: T) -> Hashable:
        raise NotImplementedError

    def header(self, width: int) -> Content:
        """Return what stands above the columns."""
        return Content("")

    def differs(self, before: T, now: T) -> bool:
        """Is the line of `now` to be drawn anew? Where it shows an age, although the two are the same."""
        return before != now

    @property
    def chosen(self) -> T | None:
        return self.items[self.cursor] if 0 <= self.cursor < len(self.items) else None

    def show(self, items: Sequence[T], *, first: bool = False) -> None:
        """Put these items there; the cursor stays on its own, or goes to the first (`first`: always)."""
        before, self.items = self.items, tuple(items)
        keys = [self.key(item) for item in self.items]
        at = keys.index(self._chosen) if self._chosen in keys else min(max(self.cursor, 0), len(keys) - 1)
        if first:
            at = 0 if keys else -1
            self.scroll_to(0, 0, animate=False)
        changed = {y for y, item in enumerate(self.items) if y >= len(before) or self.differs(before[y], item)}
        if at != self.cursor:
            changed |= {self.cursor, at}
        self.cursor = at
        for y in sorted(changed):
            self.sized(len(keys), changed=range(y, y + 1))
        self.sized(len(keys), changed=range(0))
        self._tell(always=first)

    def choose(self, index: int) -> None:
        super().choose(index)
        self._tell()

    def choose_key(self, key: Hashable) -> None:
        """Stand on that item now, or as soon as it is among the items."""
        self._chosen = key
        at = next((y for y, item in enumerate(self.items) if self.key(item) == key), None)
        if at is not None:
            super().choose(at)
            self.post_message(self.Chosen(self))

    def _tell(self, *, always: bool = False) -> None:
        key = self.key(self.chosen) if self.chosen is not None else None
        if key != self._chosen or always:
            self._chosen = key
            self.post_message(self.Chosen(self))

    def on_click(self, event: events.Click) -> None:
        index = event.y + self.scroll_offset.y
        if 0 <= index < self.count:
            if index == self.cursor:
                self.post_message(self.Opened(self))
            self.choose(index)

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()
