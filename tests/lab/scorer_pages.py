"""docs/scorers.md: its chapters are made from the registry of scorers.

`tests/scoring/test_scorer_pages.py` holds the page to it; `python tests/lab/scorer_pages.py` writes it anew.
"""

from __future__ import annotations

from pathlib import Path

from vlmconsole.scoring.listing import markdown
from vlmconsole.scoring.registry import find_scorer, scorer_names

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scorers.md"
BEGIN, END = "<!-- scorers: made by tests/lab/scorer_pages.py -->\n", "<!-- end of scorers -->\n"


def with_chapters(page: str) -> str:
    """Return `page` with a chapter for each scorer between its marks."""
    before, _, rest = page.partition(BEGIN)
    chapters = markdown([find_scorer(name) for name in scorer_names()])
    return before + BEGIN + "\n" + chapters + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(with_chapters(PAGE.read_text("utf-8")), "utf-8")
