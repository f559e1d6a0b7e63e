"""Choosing a picture from a folder, with a preview of what is under the cursor."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from vlmconsole.screens.chat.attachments import open_pictures
from vlmconsole.screens.pictures.choose import picture_view
from vlmconsole.screens.terminal.terminal import Drawing
from vlmconsole.screens.theme import DIALOGS
from vlmconsole.screens.widgets.dialogs import CANCEL
from vlmconsole.screens.widgets.field import Field
from vlmconsole.text.plain import one_line
from vlmconsole.vision.paths import SUFFIXES

#: Entries shown of one folder; typing narrows them down.
SHOWN = 500


def sample_folder() -> Path:
    """Return the pictures that come with the package."""
    import vlmconsole.assets

    return Path(vlmconsole.assets.__file__).parent / "pictures"


def entries(folder: Path, words: str = "") -> list[Path]:
    """Folders, then pictures by name, hidden ones left out. Raises OSError when the folder cannot be read."""
    listed = [
        path
        for path in folder.iterdir()
        if not path.name.startswith(".")
        and words.lower() in path.name.lower()
        and (path.is_dir() or path.suffix.lower() in SUFFIXES)
    ]
    return sorted(listed, key=lambda path: (not path.is_dir(), path.name.lower()))[:SHOWN]


class Picker(ModalScreen[Path | None]):
    """Type to narrow, arrows to move, Enter to choose or go in, Backspace on nothing to go up."""

    CSS_PATH = DIALOGS
    BINDINGS: ClassVar[list[BindingType]] = [
        CANCEL,
        Binding("down", "cursor(1)", "next", show=False, priority=True),
        Binding("up", "cursor(-1)", "previous", show=False, priority=True),
        Binding("ctrl+u", "up", "parent folder", key_display="Ctrl+U", priority=True),
        Binding("tab", "place", "switch: samples / inbox / cwd", key_display="Tab", priority=True),
    ]

    def __init__(self, folder: Path, places: dict[str, Path], drawing: Drawing) -> None:
        super().__init__(classes="reader")
        self._folder = folder
        self._places = [path for path in places.values() if path.is_dir()]
        self._drawing = drawing
        self._entries: list[Path] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet"):
            yield Static(id="where", classes="title")
            yield Field(placeholder="type to filter", compact=True)
            with Horizontal(id="choice"):
                yield OptionList(compact=True, markup=False)
                yield Vertical(id="preview")

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False
        self.query_one(OptionList).can_focus = False
        self._fill()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._fill()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        at = self.query_one(OptionList).highlighted
        if at is not None and at < len(self._entries):
            self._choose(self._entries[at])

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._choose(self._entries[event.option_index])

    async def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        self.run_worker(self._preview(self._entries[event.option_index]), group="preview", exclusive=True)

    def action_cursor(self, by: int) -> None:
        listing = self.query_one(OptionList)
        (listing.action_cursor_down if by > 0 else listing.action_cursor_up)()

    def action_up(self) -> None:
        self._go(self._folder.absolute().parent)

    def action_place(self) -> None:
        here = self._folder.absolute()
        at = next((i for i, path in enumerate(self._places) if path.absolute() == here), -1)
        self._go(self._places[(at + 1) % len(self._places)])

    def action_cancel(self) -> None:
        self.dismiss(None)

    def _choose(self, path: Path) -> None:
        if path.is_dir():
            self._go(path)
        else:
            self.dismiss(path)

    def _go(self, folder: Path) -> None:
        self._folder = folder
        field = self.query_one(Input)
        if field.value:
            field.value = ""
        else:
            self._fill()

    def _fill(self) -> None:
        listing = self.query_one(OptionList)
        where = Content.assemble(("Attach an image  ", "bold"), (one_line(self._folder.absolute(), 100), "$muted"))
        try:
            self._entries = entries(self._folder, self.query_one(Input).value.strip())
        except OSError as error:
            self._entries = []
            where = Content(one_line(f"{self._folder}: {error.strerror}")).stylize("$error")
        self.query_one("#where", Static).update(where)
        listing.clear_options()
        for path in self._entries:
            name = one_line(path.name, 80)
            listing.add_option(Option(Content(name + "/").stylize("$accent") if path.is_dir() else Content(name)))
        if self._entries:
            listing.highlighted = next((i for i, path in enumerate(self._entries) if not path.is_dir()), 0)
        else:
            self.query_one("#preview").remove_children()

    async def _preview(self, path: Path) -> None:
        pane = self.query_one("#preview", Vertical)
        if path.is_dir():
            await pane.remove_children()
            return
        pictures, errors = await open_pictures([path], background="white")
        await pane.remove_children()
        if errors:
            await pane.mount(Static(Content(errors[0]).stylize("$error")))
            return
        picture = pictures[0]
        width, height = picture.size
        facts = Content("\n".join(filter(None, (f"{width}×{height}", picture.description, picture.note)))).stylize(
            "$muted"
        )
        room = pane.size
        view = picture_view(picture, max(8, room.width - 2), max(4, room.height - 4), self._drawing)
        await pane.mount(view, Static(facts))
