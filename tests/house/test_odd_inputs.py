"""One table of odd inputs and what happens with each, in docs/odd-inputs.md: kept true by this test.

After a wanted change: `python tests/house/test_odd_inputs.py`, and look at what changed.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    tests = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(tests / "lab"), str(tests / "vision")]

import pytest
from folders import ROOT
from hostile import HOSTILE
from test_images_odd import REFUSED, RIGHT

from vlmconsole.screens.prose.blocks import layout
from vlmconsole.screens.prose.markdown import markdown_blocks
from vlmconsole.text.plain import inert, one_line
from vlmconsole.vision.images import PictureError, open_picture

# pytest puts aside the filter by which the package keeps Pillow's own warnings off the screen.
pytestmark = pytest.mark.filterwarnings("ignore:::PIL")

TABLE = ROOT / "docs" / "odd-inputs.md"
# Below it stands what was tried by hand on a finished lab: it is kept as it is written.
BY_HAND = "\n## Tampering"
HEAD = """# Odd inputs, and what happens

Made by `python tests/house/test_odd_inputs.py` from the inputs of the tests; a test fails when a line is no
longer true.
"""


def pictures() -> list[tuple[str, str]]:
    """Every odd picture and what it comes to: the size sent with every change named, or the line of its refusal."""
    made = []
    for name, (source, *_) in RIGHT.items():
        picture = open_picture(source() if callable(source) else source, name="image")
        width, height = picture.size
        made.append((name, f"{width}×{height}, {picture.description}" + (f"; {picture.note}" if picture.note else "")))
    for name, (data, *_) in REFUSED.items():
        try:
            open_picture(data, name="image")
        except PictureError as error:
            made.append((name, f"refused: {error}"))
        else:
            raise AssertionError(f"{name} was not refused")
    return made


def texts() -> list[tuple[str, str, str]]:
    """Every hostile text as it came and as it is shown (⏎ between two lines)."""
    made = []
    for name, text in HOSTILE:
        lines = [line.plain.strip() for line in layout(markdown_blocks(inert(text[:400]))[0], 60)]
        shown = " ⏎ ".join(line for line in lines if line)
        shown = "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in shown)
        made.append((name, one_line(ascii(text)[1:-1], 50), one_line(shown, 50)))
    return made


def cell(text: str) -> str:
    return "`" + text.replace("|", "¦").replace("`", "ˋ") + "`" if text else "(nothing)"


def table() -> str:
    lines = [HEAD, f"## {len(RIGHT) + len(REFUSED)} images\n", "| image | what happens |", "|---|---|"]
    lines += [f"| {name} | {said.replace('|', '¦')} |" for name, said in pictures()]
    lines += [f"\n## {len(HOSTILE)} texts\n", "| text | as it comes | as it is shown |", "|---|---|---|"]
    lines += [f"| {name} | {cell(raw)} | {cell(shown)} |" for name, raw, shown in texts()]
    return "\n".join(lines) + "\n"


def test_the_table_is_true() -> None:
    assert len(RIGHT) + len(REFUSED) >= 40 and len(HOSTILE) >= 25
    assert TABLE.read_text().partition(BY_HAND)[0] == table()


if __name__ == "__main__":
    _, mark, rest = TABLE.read_text().partition(BY_HAND)
    TABLE.write_text(table() + mark + rest)
