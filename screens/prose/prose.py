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

from vlmconsole.screens.prose.blocks import Block, joined, lines_after
from vlmconsole.screens.prose.markdown import PARSED, markdown_blocks, plain_blocks
from vlmconsole.text.plain import inert


class BlocksVisual(Visual):
    """Blocks drawn at a width. Lines are laid out once per width, those that stood `before` in the same place never."""

    def __init__(self, blocks: list[Block], before: BlocksVisual | None = None) -> None:
        self._blocks = blocks
        # One that was never laid out has nothing to give, and would hold the one before it.
        self._before = before if before is not None and before._width >= 0 else None
        self._width: int = -1
        self._each: list[list[Content]] = []
        self._lines: list[Content] = []

    def lines(self, width: int) -> list[Content]:
        if width != self._width:
            before, self._before = self._before, None  # kept no longer: each holds the one before it
            stood = before if before is not None and before._width == width else BlocksVisual([])
            known = len(stood._each)
            self._each = [
                lines_after(block, width, stood._blocks[n], stood._each[n]) if n < known else block.lines(width)
                for n, block in enumerate(self._blocks)
            ]
            self._width, self._lines = width, joined(self._blocks, self._each)
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
        return [
            strip
            for y, line in enumerate(lines if height is None else lines[:height])
            for strip in LineVisual(line, y).render_strips(width, 1, style, options)
        ]


class LineVisual(Visual):
    """One laid-out line, the `y`-th of its message."""

    def __init__(self, line: Content, y: int) -> None:
        self._line, self._y = line, y

    def get_optimal_width(self, rules: RulesMap, container_width: int) -> int:
        return self._line.cell_length

    def get_height(self, rules: RulesMap, width: int) -> int:
        return 1

    def render_strips(self, width: int, height: int | None, style: Style, options: RenderOptions) -> list[Strip]:
        line = self._line
        if options.selection is not None and options.selection_style is not None:
            span = options.selection.get_span(self._y)
            if span is not None:
                end = len(line.plain) if span[1] == -1 else span[1]
                line = line.stylize(options.selection_style, span[0], end)
        return [_strip(line, style, options, self._y)]


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
        self._visual_now = BlocksVisual([])  # nothing is taken over from what stood while it grew
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
        self._visual_now = BlocksVisual(blocks, before)
        width = self.content_size.width
        # Laying out the whole transcript costs far more than repainting one message: only when the height moves.
        same = width > 0 and len(before.lines(width)) == len(self._visual_now.lines(width))
        if self.is_attached:
            self.refresh(layout=not same)
            if same:
                self.clear_cached_dimensions()

    def render(self) -> BlocksVisual:
        return self._visual_now

    def render_line(self, y: int) -> Strip:
        """Only the lines that are seen are drawn: a long answer would cost as much as it is long."""
        lines = self._visual_now.lines(self.size.width)
        if y >= len(lines):
            return Strip.blank(self.size.width, self.visual_style.rich_style)
        return Visual.to_strips(self, LineVisual(lines[y], y), self.size.width, 1, self.visual_style)[0]

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        text = "\n".join(line.plain for line in self._visual_now.laid_out)
        return selection.extract(text), "\n"
