"""Many lines of which only those in sight are drawn: the base of the queue's table, the curves and the log."""

from __future__ import annotations

from textual.content import Content
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import Visual


class LineView(ScrollView, can_focus=True, inherit_bindings=False):
    """Subclasses say how many lines there are and what stands on one; `cursor` is the chosen one, -1 for none."""

    COMPONENT_CLASSES = {"lines--cursor"}  # noqa: RUF012 — as in Textual
    # Here and not in a screen's own style sheet: those are read when their screen is first opened.
    DEFAULT_CSS = """
    LineView { height: 1fr; background: $background; overflow-x: hidden; scrollbar-size-vertical: 1; }
    LineView { text-wrap: nowrap; text-overflow: ellipsis; }
    LineView > .lines--cursor { background: $surface; color: $foreground; }
    LineView:focus > .lines--cursor { background: $panel; color: $foreground; }
    """
    ALLOW_SELECT = False

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.cursor = -1
        self._count = 0

    def line(self, y: int, width: int) -> Content:
        """Line `y` of the whole, for `width` cells."""
        raise NotImplementedError

    def sized(self, count: int, *, changed: range | None = None) -> None:
        """There are `count` lines now, of which those of `changed` (None: all) must be drawn anew."""
        if count != self._count:
            self._count = count
            self.virtual_size = Size(0, count)
            self.refresh(layout=self.styles.height is not None and self.styles.height.is_auto)
            return
        if changed is None:
            self.refresh()
            return
        top = self.scroll_offset.y
        for y in changed:
            if top <= y < top + self.size.height:
                self.refresh(Region(0, y - top, self.size.width, 1))

    def watch_show_vertical_scrollbar(self, shown: bool) -> None:
        """What was scrolled before there was a scrollbar is not told to it by Textual (8.2.8)."""
        if shown:
            self.vertical_scrollbar.position = self.scroll_y

    @property
    def count(self) -> int:
        return self._count

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return self._count

    def choose(self, index: int) -> None:
        """Put the cursor on line `index` and bring it into sight."""
        index = max(0, min(self._count - 1, index)) if self._count else -1
        if index == self.cursor:
            return
        self.cursor = index
        if index >= 0:
            self.scroll_to_region(Region(0, index, 1, 1), animate=False, force=True)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        index = y + self.scroll_offset.y
        if not 0 <= index < self._count or not width:
            return Strip.blank(width, self.rich_style)
        here = index == self.cursor
        style = self.get_visual_style("lines--cursor") if here else self.visual_style
        strips = Visual.to_strips(self, self.line(index, width), width, 1, style)
        strip = strips[0] if strips else Strip.blank(width)
        return strip.extend_cell_length(width, style.rich_style)
