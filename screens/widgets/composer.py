"""The composer: a question of any number of lines, and the chips of the pictures that go with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Static, TextArea
from vlmconsole.screens.keys import bindings

from vlmconsole.runs.plain import one_line

if TYPE_CHECKING:
    from vlmconsole.vision.images import Picture


class Question(TextArea):
    """The text itself. Enter sends; a paste stays whole, line ends and all."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(("composer",), "chat")

    class Pasted(Message):
        """A paste that may be paths; `text` is inserted as text unless somebody takes it."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Emptied(Message):
        """Backspace in an empty question: the last chip goes."""

    def __init__(self) -> None:
        super().__init__(
            soft_wrap=True, show_line_numbers=False, compact=True, highlight_cursor_line=False, id="question"
        )
        self.cursor_blink = False

    async def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        self.post_message(self.Pasted(event.text))

    async def _on_key(self, event: events.Key) -> None:
        # TextArea would take Enter as a new line and Backspace as its own; both mean more here.
        if event.key == "enter":
            event.prevent_default()
            event.stop()
            await self.run_action("send")
        elif event.key == "backspace" and not self.text:
            event.prevent_default()
            event.stop()
            self.post_message(self.Emptied())
        else:
            await super()._on_key(event)

    def action_newline(self) -> None:
        self.insert("\n")

    def action_send(self) -> None:
        self.post_message(Composer.Sent(self.text))


class Chip(Static):
    """A picture that will be sent; a click takes it away."""

    class Removed(Message):
        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    def __init__(self, index: int, picture: Picture, tokens: int | None) -> None:
        width, height = picture.size
        cost = f" · {tokens} tokens" if tokens is not None else ""
        note = "" if not picture.changes else " · changed"
        text = Content.assemble(
            (f" {index + 1} ", "$accent"),
            one_line(picture.name, 32),
            (f" {width}×{height}{cost}{note} ✕ ", "$muted"),
        )
        super().__init__(text, classes="chip")
        self.index = index
        self.tooltip = Content(one_line(f"{picture.said}. {picture.note}".strip(". ")))

    def on_click(self) -> None:
        self.post_message(self.Removed(self.index))


class Composer(Vertical):
    """Chips, the question, and a line that says what sending would cost (or why it cannot be)."""

    class Sent(Message):
        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def compose(self) -> ComposeResult:
        yield Horizontal(id="chips")
        with Horizontal(id="entry"):
            yield Static("┃", id="prompt")
            yield Question()
        with Horizontal(id="hints"):
            yield Static(id="notice")
            yield Static(id="budget")

    def on_mount(self) -> None:
        self.query_one("#chips").display = False

    @property
    def question(self) -> Question:
        return self.query_one(Question)

    async def show_chips(self, pictures: list[tuple[Picture, int | None]]) -> None:
        """The pictures waiting to be sent, each with its expected visual tokens (None: unknown)."""
        chips = self.query_one("#chips", Horizontal)
        await chips.remove_children()
        await chips.mount_all([Chip(index, picture, tokens) for index, (picture, tokens) in enumerate(pictures)])
        chips.display = bool(pictures)

    def notice(self, text: str = "", style: str = "$muted") -> None:
        """One line under the question: an error, or what is being waited for. Text from outside is made inert."""
        self.query_one("#notice", Static).update(Content(text).stylize(style) if text else Content(""))

    def budget(self, text: str, style: str = "$muted") -> None:
        self.query_one("#budget", Static).update(Content(text).stylize(style) if text else Content(""))
