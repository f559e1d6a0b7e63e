"""A new screen is at most 60 lines and one line in the table: this one lists a folder's notes, and opens."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path

import pytest
from textual.containers import Horizontal
from textual.content import Content
from textual.widget import Widget
from waiting import until

from vlmconsole.app import ConsoleApp
from vlmconsole.errors import LabError
from vlmconsole.lab import Lab
from vlmconsole.screens import table
from vlmconsole.screens.looking import LookingScreen
from vlmconsole.screens.paned import Pane
from vlmconsole.screens.widgets.filtered_table import FilteredTable
from vlmconsole.screens.widgets.item_list import ItemList
from vlmconsole.screens.widgets.said import Said


class NoteRows(ItemList[Path]):
    """One line a note."""

    def key(self, item: Path) -> str:
        return item.name

    def line(self, y: int, width: int) -> Content:
        return Content(self.items[y].stem).truncate(width, ellipsis=True)


class NotesScreen(LookingScreen[Path]):
    """The notes of a lab home │ the chosen one."""

    ENTRY = "notes"
    PANES = (Pane("Notes", "notes"), Pane("Text", "text"))
    PERIOD = 0.2

    def __init__(self) -> None:
        super().__init__()
        self.rows = NoteRows(id="note-rows")
        self.table = FilteredTable(self.rows, "a word of its name", Content("No notes yet"), id="notes")
        self.text = Said(id="text")

    def compose_panes(self) -> Iterable[Widget]:
        with Horizontal(classes="panes"):
            yield from (self.table, self.text)

    def open_desk(self) -> Path:
        return self.console.lab.places.home / "notes"

    async def look_once(self) -> None:
        words = self.table.field.value
        notes = await self.in_thread(lambda folder: sorted(one for one in folder.glob("*.txt") if words in one.name))
        self.rows.show(notes)
        self.table.show_head(Content(f" {len(notes)} notes"), empty=not notes and not words)
        note = self.rows.chosen
        self.text.say(Content(note.read_text() if note is not None else ""))

    def show_fault(self, error: LabError | OSError) -> None:
        self.table.show_fault("Notes cannot be read", str(error))

    def on_item_list_chosen(self, event: ItemList.Chosen) -> None:
        self.look()

    def on_filtered_table_filtered(self, event: FilteredTable.Filtered) -> None:
        self.look()


LINE = table.ScreenEntry(7, "notes", "Notes", f"{__name__}:NotesScreen", "vlmconsole notes")


def test_it_is_at_most_sixty_lines() -> None:
    assert sum(len(inspect.getsource(part).splitlines()) for part in (NoteRows, NotesScreen)) <= 60


@pytest.mark.parametrize("width", [80, 120])
async def test_it_opens_moves_filters_enlarges_and_says_what_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr(table, "SCREENS", (*table.SCREENS, LINE))
    notes = tmp_path / "notes"
    notes.mkdir()
    (tmp_path / "config.toml").write_text('server = "none"\n')
    app = ConsoleApp(Lab.open(tmp_path))
    app.add_mode("notes", NotesScreen)
    async with app.run_test(size=(width, 24)) as pilot:
        app.switch_mode("notes")
        await until(lambda: isinstance(app.screen, NotesScreen) and not app.screen.rows.items)
        screen = app.screen
        assert isinstance(screen, NotesScreen)
        await until(lambda: screen.table.has_class("-empty"))
        for name in ("apple", "pear", "plum"):
            (notes / f"{name}.txt").write_text(f"about {name}s")
        await until(lambda: len(screen.rows.items) == 3 and not screen.table.has_class("-empty"))

        await pilot.press("j", "j")
        await until(lambda: str(screen.text.render()) == "about plums")
        (notes / "banana.txt").write_text("about bananas")
        await until(lambda: len(screen.rows.items) == 4)
        assert screen.rows.chosen is not None and screen.rows.chosen.stem == "plum", "the cursor stays on its item"

        await pilot.press("slash", *"pe")
        await until(lambda: [note.stem for note in screen.rows.items] == ["pear"])
        assert screen.typing and not screen.check_action("move", (1,))
        await pilot.press("escape")
        await until(lambda: len(screen.rows.items) == 4 and screen.focused is screen.rows)

        assert (screen.text.region.width > 0) == (width == 120), "narrow: one pane at a time"
        await pilot.press("right_square_bracket")
        assert screen.pane == 1 and screen.text.has_class("-current")
        await pilot.press("z")
        await pilot.pause()
        assert screen.text.region.width == width and screen.table.region.width == 0
        await pilot.press("escape")
        await pilot.pause()
        assert (screen.table.region.width > 0) == (width == 120)

        footer = [binding.description for _, binding, enabled, _ in screen.active_bindings.values() if enabled]
        assert {"filter", "pane", "back", "quit", "help"} <= set(footer)

        async def gone() -> None:
            raise LabError("the disk is gone")

        monkeypatch.setattr(screen, "look_once", gone)
        await until(lambda: "the disk is gone" in str(screen.table.nothing.render()))
