"""The page of scorers is what the registry holds."""

from __future__ import annotations

from scorer_pages import PAGE, with_chapters

from vlmconsole.scoring.registry import scorer_names


def test_the_page_is_made_from_the_registry() -> None:
    page = PAGE.read_text("utf-8")
    assert page == with_chapters(page), "python tests/lab/scorer_pages.py writes it anew"
    assert all(f"## `{name}`\n" in page for name in scorer_names())
