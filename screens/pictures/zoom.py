"""One picture on the whole screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from vlmconsole.chats.records import StoredPicture
from vlmconsole.screens.pictures.choose import picture_view
from vlmconsole.screens.terminal.terminal import Drawing
from vlmconsole.screens.theme import DIALOGS
from vlmconsole.text.plain import one_line

if TYPE_CHECKING:
    from vlmconsole.vision.images import Picture


class Zoom(ModalScreen[None]):
    """As large as the terminal allows; any of Esc, q, z, Enter goes back."""

    CSS_PATH = DIALOGS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "back", key_display="Esc"),
        Binding("q,z,enter", "dismiss", "back", show=False),
    ]

    def __init__(self, picture: Picture | StoredPicture, drawing: Drawing) -> None:
        super().__init__(classes="zoom")
        self._picture, self._drawing = picture, drawing

    def compose(self) -> ComposeResult:
        size = self.app.size
        yield picture_view(self._picture, size.width - 2, size.height - 2, self._drawing)
        width, height = self._picture.size
        text = f"{one_line(self._picture.name, 60)}  {width}×{height}, {self._picture.description}   Esc back"
        yield Static(Content(text).stylize("$muted"))
