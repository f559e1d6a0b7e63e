"""Lines of styled text that a screen and a plain terminal show alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.text import Text

from vlmconsole.desks.opened_run import OpenTarget
from vlmconsole.text.fitting import wrapped as wrapped_text
from vlmconsole.text.signs import RICH_STYLES

_STYLES: dict[str, str] = {str(tone): style for tone, style in RICH_STYLES.items()}

#: (text, style): words parted by blanks, each a tone (`accent`, `error`, …), `bold`, or `ground-30`: so many per cent
#: of the accent behind the text
Piece = tuple[str, str]


@dataclass(frozen=True)
class Line:
    """A line, and what it stands for (None: the run as a whole)."""

    pieces: tuple[Piece, ...]
    target: OpenTarget | None = None

    @property
    def plain(self) -> str:
        """The text alone."""
        return "".join(text for text, _ in self.pieces)


def line(*pieces: Piece | str, target: OpenTarget | None = None) -> Line:
    """Return a line of pieces; a text alone has no style."""
    styled = ((piece, "") if isinstance(piece, str) else piece for piece in pieces)
    return Line(tuple(piece for piece in styled if piece[0]), target)


def heading(title: str, note: str = "") -> list[Line]:
    """Return an empty line and a title."""
    return [line(), line((title, "bold"), (f"  {note}" if note else "", "faint"))]


def wrapped(text: str, width: int, style: str = "muted", target: OpenTarget | None = None) -> list[Line]:
    """Return a sentence over as many lines as it takes."""
    return [line((part, style), target=target) for part in wrapped_text(text, max(10, width))]


def as_rich(lines: Iterable[Line]) -> Text:
    """Return the lines for a plain terminal, where nothing is drawn behind a text and no line ends on blanks."""
    return Text("\n").join(_rich(line) for line in lines)


def _rich(line: Line) -> Text:
    text = Text()
    for part, style in line.pieces:
        text.append(part, " ".join(_STYLES.get(word, word) for word in style.split() if "-" not in word))
    text.rstrip()
    return text
