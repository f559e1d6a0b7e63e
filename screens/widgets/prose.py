"""One message's words: a single widget, however many paragraphs, cheap to grow while an answer streams."""

from __future__ import annotations

from rich.segment import Segment
from textual.content import Content
from textual.css.styles import RulesMap
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.visual import RenderOptions, Visual
from textual.widget import Widget
from vlmconsole.screens.widgets.blocks import Block, layout
from vlmconsole.screens.widgets.markdown import PARSED, markdown_blocks, plain_blocks

from vlmconsole.runs.plain import inert


class BlocksVisual(Visual):
    """Blocks drawn at a width. Lines are laid out once per width, and strips once per style."""

    def __init__(self, blocks: list[Block]) -> None:
        self._blocks = blocks
        self._width = -1
        self._lines: list[Content] = []
        self._cached: tuple[tuple[int, Style, int | None], list[Strip]] | None = None

    def lines(self, width: int) -> list[Content]:
        if width != self._width:
            self._width, self._lines = width, layout(self._blocks, width)
        return self._lines

    @property
    def laid_out(self) -> list[Content]:
        """The lines of the last layout (for the selection, which is asked without a width)."""
        return self._lines

    def get_optimal_width(self, rules: RulesMap, container_width: int) -> int:
        return max((line.cell_length for line in self.lines(container_width)), default=1)

    def get_height(self, rules: RulesMap, width: int) -> int:
        return len(self.lines(width))

    def render_strips(self, width: int, height: int | None, style: Style, options: RenderOptions) -> list[Strip]:
        lines = self.lines(width)
        key = (width, style, height)
        if options.selection is None and self._cached is not None and self._cached[0] == key:
            return self._cached[1]
        strips: list[Strip] = []
        for y, line in enumerate(lines if height is None else lines[:height]):
            if options.selection is not None and options.selection_style is not None:
                span = options.selection.get_span(y)
                if span is not None:
                    end = len(line.plain) if span[1] == -1 else span[1]
                    line = line.stylize(options.selection_style, span[0], end)
            strips.append(_strip(line, style, options, y))
        if options.selection is None:
            self._cached = (key, strips)
        return strips


def _strip(line: Content, style: Style, options: RenderOptions, y: int) -> Strip:
    segments: list[Segment] = []
    x = 0
    for text, piece_style in line.render(style, end="", parse_style=options.get_style):
        segments.append(Segment(text, (style + piece_style).rich_style_with_offset(x, y)))
        x += len(text)
    return Strip(segments, line.cell_length)


class Prose(Widget):
    """Words of a message. `grow` while a stream runs, `settle` once at its end; user text is shown as typed."""

    DEFAULT_CSS = """
    Prose { width: 1fr; height: auto; }
    """

    def __init__(self, text: str = "", *, markdown: bool = True, classes: str | None = None) -> None:
        super().__init__(classes=classes)
        self.auto_links = False
        self.markdown = markdown
        self._raw = text
        self._settled: list[Block] = []
        self._settled_at = 0
        self._visual_now = BlocksVisual([])
        self.settle(text)

    @property
    def text(self) -> str:
        """The text as it came, before it was made inert."""
        return self._raw

    def settle(self, text: str) -> None:
        """Show the whole text, parsed from its beginning."""
        self._raw = text
        self._settled, self._settled_at = [], 0
        clean = inert(text)
        self._show(markdown_blocks(clean)[0] if self.markdown else plain_blocks(clean))

    def grow(self, text: str) -> None:
        """Show the longer text of a running stream; only what follows the last settled block is parsed."""
        self._raw = text
        clean = inert(text)
        if not self.markdown or len(clean) > PARSED:
            self._show(plain_blocks(clean))
            return
        blocks, settled, offset = markdown_blocks(clean[self._settled_at :])
        self._show([*self._settled, *blocks])
        if settled:
            self._settled = [*self._settled, *blocks[:settled]]
            self._settled_at += offset

    def _show(self, blocks: list[Block]) -> None:
        before = self._visual_now
        self._visual_now = BlocksVisual(blocks)
        width = self.content_size.width
        # Laying out the whole transcript costs far more than repainting one message: only when the height moves.
        same = width > 0 and len(before.lines(width)) == len(self._visual_now.lines(width))
        if self.is_attached:
            self.refresh(layout=not same)
            if same:
                self.clear_cached_dimensions()

    def render(self) -> BlocksVisual:
        return self._visual_now

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        text = "\n".join(line.plain for line in self._visual_now.laid_out)
        return selection.extract(text), "\n"
