"""The Data screen on real datasets and evaluations: what it shows, where the keys go, how it looks at both sizes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import judged
import own_datasets
import pytest
from job_queue import held
from own_datasets import evaluate, shapes
from refusals import mentions
from textual.geometry import Region
from textual.pilot import Pilot
from waiting import settled, until

from vlmconsole.app import ConsoleApp
from vlmconsole.data.bundled_tasks import TASKS
from vlmconsole.evaluation.notes import read_example_notes
from vlmconsole.lab import Lab
from vlmconsole.screens.chat.screen import ChatScreen
from vlmconsole.screens.data.rows import EMPTY
from vlmconsole.screens.data.screen import DataScreen
from vlmconsole.screens.pictures.kitty import CELL, MARKS
from vlmconsole.screens.widgets.dialogs import Ask, Choose

pytestmark = pytest.mark.usefixtures("utc")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A dataset of drawn scenes, and one of a user's own with an evaluation of both sides over it."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    judged.small_dataset(home)
    folder = shapes(home)
    evaluate(home, folder, before, after, name="20261201-130000-eval-shapes-0da7")
    return home


def before(example: Any, number: int) -> str | None:
    """Right on every third, an empty answer to the eleventh, none to the twelfth."""
    return None if number == 11 else "" if number == 10 else example.truth if number % 3 == 0 else "grey"


def after(example: Any, number: int) -> str | None:
    """Right but on the first three."""
    return "grey" if number < 3 else str(example.truth)


@asynccontextmanager
async def opened(
    home: Path, size: tuple[int, int] = (120, 40), chosen: str = "shapes", server: str = "none"
) -> AsyncIterator[tuple[Pilot[None], DataScreen]]:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    (home / "config.toml").write_text(f'server = "{server}"\n')
    app = ConsoleApp(Lab.open(home))
    async with app.run_test(size=size, notifications=True) as pilot:
        await pilot.press("escape", "f7")
        await until(lambda: isinstance(app.screen, DataScreen))
        screen = app.screen
        assert isinstance(screen, DataScreen)
        if chosen:
            await until(lambda: bool(screen.rows.items))
            screen.rows.choose_key(chosen)
            await shown(screen, chosen)
        await (settled(pilot) if server == "none" else pilot.pause())  # else a worker waits for the server
        yield pilot, screen


async def shown(screen: DataScreen, name: str, found: int | None = None) -> None:
    await until(
        lambda: (
            screen.shown is not None
            and screen.shown.opened.entry.name == name
            and (found is None or len(screen.shown.shown) == found)
        )
    )


def text(screen: DataScreen) -> str:
    return "\n".join(line.plain for line in screen.example.text.lines)


async def test_it_lists_datasets_and_shows_images_truth_and_both_answers(home: Path) -> None:
    async with opened(home) as (pilot, screen):
        assert [entry.name for entry in screen.rows.items] == ["shapes", "small"]
        head = str(screen.head.render())
        assert mentions(head, "shapes", "test 12", "train 4", "exact", "1 run", "intact")
        assert screen.gallery.chosen == 0 and screen.gallery.grid.columns >= 2
        await until(lambda: 0 in screen.gallery._drawn)
        await until(lambda: "shape-00000" in text(screen))
        assert mentions(text(screen), "What colour is shape 0?", "red", "before", "after", "grey")
        await pilot.press("right_square_bracket", "l")
        assert screen.gallery.chosen == 1
        await until(lambda: "shape-00001" in text(screen))
        await pilot.press("j")
        assert screen.gallery.chosen == 1 + screen.gallery.grid.columns
        await pilot.press("G")
        assert screen.gallery.chosen == 15
        await until(lambda: mentions(text(screen), "train", "No answers yet"))
        await pilot.press("escape", "j")
        await shown(screen, "small")
        assert screen.shown is not None and {"counting", "naming"} <= set(screen.shown.opened.scorers)


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ("is:wrong", {0, 1, 2, 4, 5, 7, 8, 10}),
        ("is:lost", {0}),
        ("is:flipped is:won", {4, 5, 7, 8, 10, 11}),
        ("is:invalid", {10}),
        ("is:failed", {11}),
        ("is:unanswered", {12, 13, 14, 15}),
        ("run:after is:wrong", {0, 1, 2}),
        ("split:train", {12, 13, 14, 15}),
        ("group:round is:lost", set()),
        ("shape 7?", {7}),
    ],
)
async def test_filters_leave_what_they_name(home: Path, words: str, numbers: set[int]) -> None:
    async with opened(home) as (pilot, screen):
        await pilot.press("right_square_bracket", "slash")
        screen.field.value = words
        await shown(screen, "shapes", len(numbers))
        assert screen.shown is not None and set(screen.shown.shown) == numbers
        await pilot.press("enter")
        assert screen.focused is screen.gallery
        await pilot.press("escape")
        await shown(screen, "shapes", 16)


async def test_an_unknown_filter_says_what_there_is_and_leaves_what_was_shown(home: Path) -> None:
    async with opened(home) as (pilot, screen):
        await pilot.press("right_square_bracket", "slash", *"is:wrng")
        await until(lambda: mentions(str(screen.head.render()), "is:wrng", "wrong"))
        assert screen.shown is not None and len(screen.shown.shown) == 16


async def test_notes_and_tags_are_stored_once_and_filter(home: Path) -> None:
    async with opened(home) as (pilot, screen):
        await pilot.press("right_square_bracket", "l", "n")
        await until(lambda: isinstance(pilot.app.screen, Ask))
        await pilot.press(*"too dark", "enter")
        await until(lambda: "too dark" in text(screen))
        await pilot.press("t")
        await until(lambda: isinstance(pilot.app.screen, Ask))
        await pilot.press(*"Blurred", "enter")
        await until(lambda: "blurred" in text(screen))
        notes = read_example_notes(home, "shapes")
        assert [(note.sample, note.tag, note.text) for note in notes] == [
            ("shape-00001", "note", "too dark"),
            ("shape-00001", "blurred", ""),
        ]
        await pilot.press("f")
        await until(lambda: isinstance(pilot.app.screen, Choose))
        options = {key: note for key, _, note in pilot.app.screen._options}
        assert options["tag:blurred"] == "1" and options["is:noted"].startswith("1 ")
        await pilot.press("end", "enter")
        await shown(screen, "shapes", 1)
        assert screen.gallery.chosen == 1


async def test_a_tag_that_is_none_is_refused_with_what_one_is(home: Path) -> None:
    async with opened(home) as (pilot, _):
        await pilot.press("right_square_bracket", "t")
        await until(lambda: isinstance(pilot.app.screen, Ask))
        await pilot.press(*"!?", "enter")
        await until(lambda: any("tag" in one.message for one in pilot.app._notifications))
        assert not read_example_notes(home, "shapes")


async def test_enter_puts_image_and_question_into_the_message_box(home: Path) -> None:
    async with opened(home) as (pilot, _):
        await pilot.press("right_square_bracket", "l", "l", "enter")
        await until(lambda: isinstance(pilot.app.screen, ChatScreen))
        chat = pilot.app.screen
        assert isinstance(chat, ChatScreen)
        await until(lambda: chat.composer.question.text == "What colour is shape 2?")
        (picture,) = chat.attachments.pictures
        assert picture.data == own_datasets.picture(2), "the very bytes"


async def test_a_changed_file_is_seen_and_a_damaged_one_is_told(home: Path) -> None:
    path = home / "datasets" / "shapes" / "train.parquet"
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(bytes(data))
    (home / "datasets" / "small" / "test-hollow.parquet").write_bytes(b"PAR1 no more")
    async with opened(home, chosen="") as (_, screen):
        await until(lambda: len(screen.rows.items) == 2 and "train.parquet" in str(screen.head.render()))
        assert screen.rows.line(0, 30).plain.startswith(" ✗")
        screen.rows.choose_key("small")
        await until(lambda: "test-hollow.parquet" in str(screen.head.render()) and screen.shown is None)


async def test_the_empty_page_teaches_the_import(tmp_path: Path) -> None:
    async with opened(tmp_path / "empty", (80, 24), chosen="") as (pilot, screen):
        await until(lambda: screen.table.has_class("-empty"))
        assert mentions(str(screen.table.nothing.render()), "vlmconsole data import")
        copied: list[str] = []
        pilot.app.copy_to_clipboard = copied.append
        await pilot.press("y")
        assert copied and copied[0].startswith("vlmconsole data import ")


async def test_narrow_it_shows_one_pane_at_a_time(home: Path) -> None:
    async with opened(home, (80, 24)) as (pilot, screen):
        assert screen.table.region.width == 80 and screen.gallery.region.width == 0
        await pilot.press("enter")
        await pilot.pause()
        assert screen.gallery.region.width > 70 and screen.gallery.grid.columns == 4
        await pilot.press("right_square_bracket", "full_stop")
        await pilot.pause()
        assert screen.example.region.width == 80
        await until(lambda: "shape-00001" in text(screen))


def pressing(*keys: str, chosen: str = "shapes") -> Callable[[Pilot[None]], Any]:
    """Open the screen on a dataset, then press `keys`."""

    async def run(pilot: Pilot[None]) -> None:
        await pilot.press("escape", "f7")
        await until(lambda: isinstance(pilot.app.screen, DataScreen))
        screen = pilot.app.screen
        assert isinstance(screen, DataScreen)
        if chosen:
            await until(lambda: bool(screen.rows.items))
            screen.rows.choose_key(chosen)
            await shown(screen, chosen)
        else:
            await until(lambda: screen.table.has_class("-empty"))
        await pilot.press(*keys)
        await settled(pilot)
        await pilot.pause(0.3)
        await settled(pilot)

    return run


def app(home: Path, theme: str = "dark") -> ConsoleApp:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    (home / "config.toml").write_text(f'server = "none"\ntheme = "{theme}"\n')
    return ConsoleApp(Lab.open(home))


@pytest.mark.parametrize("theme", ["dark", pytest.param("light", marks=pytest.mark.slow)])
def test_gallery_120(home: Path, snap_compare: Any, theme: str) -> None:
    assert snap_compare(app(home, theme), run_before=pressing("right_square_bracket", "l"), terminal_size=(120, 40))


def test_gallery_80(home: Path, snap_compare: Any) -> None:
    assert snap_compare(app(home), run_before=pressing("enter", "j"), terminal_size=(80, 24))


def test_example_80(home: Path, snap_compare: Any) -> None:
    assert snap_compare(app(home), run_before=pressing("enter", "right_square_bracket"), terminal_size=(80, 24))


def test_large_example_120(home: Path, snap_compare: Any) -> None:
    keys = ("enter", "right_square_bracket", "z")
    assert snap_compare(app(home), run_before=pressing(*keys), terminal_size=(120, 40))


def test_empty_80(tmp_path: Path, snap_compare: Any) -> None:
    assert snap_compare(app(tmp_path / "new"), run_before=pressing(chosen=""), terminal_size=(80, 24))


def test_scenes_are_shown_too(home: Path, snap_compare: Any) -> None:
    assert snap_compare(app(home), run_before=pressing("enter", chosen="small"), terminal_size=(120, 40))


@pytest.mark.parametrize("drawing", ["kitty", "sixel"])
async def test_thumbnails_are_pixels_where_the_terminal_draws_them(home: Path, drawing: Any) -> None:
    """The blanks of each tile's image become placed cells or sixels when a line is written, also of a cut line."""
    (home / "config.toml").write_text('server = "none"\n')
    console = ConsoleApp(Lab.open(home), drawing=drawing)
    async with console.run_test(size=(120, 40)) as pilot:
        await pressing("right_square_bracket")(pilot)
        screen = console.screen
        assert isinstance(screen, DataScreen)
        gallery = screen.gallery
        await until(lambda: {0, 1} <= gallery._drawn.keys())
        lines = gallery.render_lines(Region(0, 0, *gallery.size))
        assert {line.cell_length for line in lines} == {gallery.size.width}
        written = [line.render(console.console) for line in lines]
        mark = CELL if drawing == "kitty" else "\x1bP"
        high = gallery.grid.tile[1]
        assert mark in written[0] and mark not in written[high - 1] and "What colour" in written[high - 3]
        if drawing == "kitty":
            assert written[0].count(MARKS[0] + MARKS[0]) == gallery.grid.columns, "a first cell for each tile"
        first, second = lines[1].divide([gallery.grid.tile[0], gallery.size.width])
        assert (
            first.cell_length == gallery.grid.tile[0] and second.cell_length == gallery.size.width - first.cell_length
        )
        if drawing == "kitty":
            assert all(CELL in part.render(console.console) for part in (first, second))


async def test_marked_examples_are_asked_together(home: Path) -> None:
    """a makes a dataset of the marked ones and queues its evaluation; what is shown moves there."""
    with held(Lab.open(home).places):
        async with opened(home, server="demo") as (pilot, screen):
            await pilot.press("right_square_bracket", "space", "l", "space")
            assert screen.gallery.marked == {"shape-00000", "shape-00002"}
            await pilot.press("a")
            await until(lambda: isinstance(pilot.app.screen, Ask))
            await pilot.press(*"What is it?", "enter")
            await until(
                lambda: any(
                    "asks 2 images" in one.message or one.severity == "error" for one in pilot.app._notifications
                )
            )
            messages = [one.message for one in pilot.app._notifications]
            assert any("asks 2 images" in message for message in messages), messages
            await until(lambda: screen.shown is not None and screen.shown.opened.entry.form == "contact sheet")
            assert screen.shown is not None
            assert [one.question for one in screen.shown.opened.examples] == ["What is it?"] * 2


def test_the_empty_page_names_a_task_that_there_is() -> None:
    _, _, name = EMPTY.plain.rpartition("vlmconsole data example ")
    assert name in TASKS
