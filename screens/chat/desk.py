"""The chat screen's furniture: panes, the open conversation, the status line, and moving between them."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Center, Horizontal, Vertical
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static, TextArea

from vlmconsole.chats.records import Chat, StoredMessage
from vlmconsole.chats.store import ChatStore
from vlmconsole.errors import LabError
from vlmconsole.screens.chat.composer import FAULT, Composer, Question
from vlmconsole.screens.keys import bindings, own_actions, reading_actions
from vlmconsole.screens.table import SCREENS
from vlmconsole.screens.widgets.keyline import KeyLine
from vlmconsole.screens.widgets.topbar import TopBar

if TYPE_CHECKING:  # what the first frame does not need is imported after it
    from textual.widgets import OptionList

    from vlmconsole.app import ConsoleApp
    from vlmconsole.screens.chat.conversations import Conversations
    from vlmconsole.screens.chat.transcript import Transcript
    from vlmconsole.screens.chat.why_panel import WhyPanel

_READING = reading_actions("chat")
_OWN = own_actions("chat")
PANES = (("Conversations", "conversations"), ("Messages", "middle"), ("Why", "why"))

WELCOME = Content.assemble(
    ("Ask about a picture", "bold"),
    ("\n\nPaste or drop a path, or press ", "$muted"),
    ("Ctrl+O", "$accent"),
    (" to choose one.\nType a question and press ", "$muted"),
    ("Enter", "$accent"),
    (".\n\n", "$muted"),
    ("Esc", "$accent"),
    (" leaves the composer, then ", "$muted"),
    ("?", "$accent"),
    (" shows every key.", "$muted"),
)


class ChatDesk(Screen[None]):
    """Shows one conversation. Asking and managing are added by the classes above."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(("anywhere", "reading"), "chat")
    AUTO_FOCUS = ""  # a closed dialog must not put a person who was reading back into the composer

    def __init__(self) -> None:
        super().__init__()
        self.chat: Chat | None = None
        self.pane = 1
        self.furnished = False
        self._search = ""
        #: TTFT (seconds) of answers that are being given, by message id.
        self.begun: dict[int, float] = {}

    @cached_property
    def store(self) -> ChatStore:
        """The conversations, opened after the first frame."""
        places = self.console.lab.places
        return ChatStore(places.chats, places.pictures, clock=self.console.clock)

    @property
    def console(self) -> ConsoleApp:
        """The app, by its own type."""
        return cast("ConsoleApp", self.app)

    def compose(self) -> ComposeResult:
        yield TopBar([(str(entry.number), entry.title) for entry in SCREENS], "Chat")
        yield Static(id="panetabs")
        with Horizontal(id="panes"):
            # The first frame is what one needs to begin: the rest of the furniture follows in `_furnish`.
            yield Static(classes="hold -left")
            with Vertical(id="middle", classes="-current"), Center(id="welcome"):
                yield Static(WELCOME)
            yield Static(classes="hold -right")
        yield Composer()
        yield KeyLine()

    async def on_mount(self) -> None:
        self.console.server_changed.subscribe(self, lambda _: self.show_server())
        self._show_tabs()
        self.composer.question.focus()
        self.call_after_refresh(self._furnish)

    async def _furnish(self) -> None:
        """After the first frame: the panes, and the newest conversation, where one left off."""
        from vlmconsole.screens.chat.conversations import Conversations
        from vlmconsole.screens.chat.transcript import Transcript
        from vlmconsole.screens.chat.why_panel import WhyPanel

        panes, middle = self.query_one("#panes"), self.query_one("#middle")
        transcript = Transcript(drawing=self.console.drawing, whole=self.store.message, id="transcript")
        transcript.display = False
        await panes.remove_children(".hold")
        await panes.mount(Conversations(id="conversations"), before=middle)
        await panes.mount(WhyPanel(id="why"), after=middle)
        await middle.mount(transcript)
        self.furnished = True
        self.show_server()
        self.refresh_bindings()
        with suppress(LabError):  # a full disk, say: what was deleted long ago can wait
            self.store.purge()
        newest = self.store.chats()
        await self.open_chat(newest[0] if newest else None)

    # -- parts ---------------------------------------------------------------------------------------------

    @property
    def transcript(self) -> Transcript:
        from vlmconsole.screens.chat.transcript import Transcript

        return self.query_one("#transcript", Transcript)

    @property
    def why(self) -> WhyPanel:
        from vlmconsole.screens.chat.why_panel import WhyPanel

        return self.query_one("#why", WhyPanel)

    @property
    def conversations(self) -> Conversations:
        from vlmconsole.screens.chat.conversations import Conversations

        return self.query_one("#conversations", Conversations)

    @property
    def adapter(self) -> str:
        """Name of the adapter that answers in this conversation, "" for the base alone."""
        return ""

    @property
    def asking(self) -> dict[str, Any]:
        """How the next question would be asked; known to the class above."""
        return {}

    @property
    def listing(self) -> OptionList:
        return self.conversations.listing

    @property
    def composer(self) -> Composer:
        return self.query_one(Composer)

    @property
    def typing(self) -> bool:
        """Is a text being typed? Then single letters are letters."""
        if isinstance(self.focused, TextArea):
            return True
        from textual.widgets import Input

        return isinstance(self.focused, Input)

    def answers(self) -> list[StoredMessage]:
        return [message for message in self.transcript.messages if message.role == "assistant"]

    def chosen_answer(self) -> StoredMessage | None:
        """The chosen message if it is an answer, else the answer to the chosen question."""
        messages, at = self.transcript.messages, self.transcript.chosen
        if not 0 <= at < len(messages):
            return None
        return next((message for message in messages[at:] if message.role == "assistant"), None)

    def chosen_question(self) -> StoredMessage | None:
        """The chosen message if it is a question, else the question of the chosen answer."""
        messages, at = self.transcript.messages, self.transcript.chosen
        return next((message for message in reversed(messages[: at + 1]) if message.role == "user"), None)

    # -- showing -------------------------------------------------------------------------------------------

    async def open_chat(self, chat: Chat | None) -> None:
        """Show a conversation (None: an empty one that is stored with its first question)."""
        self.chat = chat
        await self.show_messages(chat)
        self.show_list()
        self.show_welcome()
        self.show_server()

    async def show_messages(self, chat: Chat | None) -> None:
        """A conversation's messages as the store has them, with the evidence of those that are mounted."""
        from vlmconsole.screens.chat.transcript import WINDOW

        await self.transcript.show(self.store.messages(chat.id, evidence=WINDOW) if chat is not None else [])

    def show_welcome(self) -> None:
        empty = not self.transcript.messages
        self.query_one("#welcome").display = empty
        self.transcript.display = not empty

    def show_list(self) -> None:
        chats = self.store.chats(self._search)
        self.conversations.show(
            chats, self.chat.id if self.chat else None, self.console.clock(), searching=bool(self._search.strip())
        )

    def show_server(self) -> None:
        """The status line, and the settings under the numbers."""
        link = self.console.link
        bar = self.query_one(TopBar)
        if link is None:
            fault = self.console.no_server
            if not fault:
                bar.show("starting", "…", "")
                return
            bar.show("failed", f"{self.console.lab.settings.server} · failed", "")
            if self.furnished:
                self.composer.notice(fault, "$error", about=FAULT)
            return
        view = link.view.with_adapter(self.adapter)
        bar.show(view.state, view.short, view.long)
        if not self.furnished:
            return
        self.why.show_settings(link.settings, link.profile.name)
        if link.view.state == "failed":
            self.composer.notice(link.view.note, "$error", about=FAULT)
        elif link.view.state == "ready":
            self.composer.withdraw(FAULT)

    def on_transcript_selected(self, event: Transcript.Selected) -> None:
        event.stop()
        self.show_why()

    def show_why(self) -> None:
        """The numbers of the chosen answer; of one that is being given, those that stand already."""
        from vlmconsole.screens.chat.columns import Row
        from vlmconsole.screens.chat.why import asked_with, unusual_rows

        answer = self.chosen_answer()
        answers = self.answers()
        number = next((i for i, item in enumerate(answers, 1) if answer is not None and item.id == answer.id), 0)
        begun = self.begun.get(answer.id) if answer is not None else None
        usual = self.console.lab.settings
        asked = asked_with(answer.answer) if answer is not None and answer.answer else self.asking
        unusual = unusual_rows(asked, temperature=usual.temperature, max_tokens=usual.max_tokens)
        if self.chat is not None and self.chat.damaged:
            unusual.append(Row("its settings", "damaged: the usual ones hold", "$warning"))
        self.why.show(answer, number, len(answers), ttft_s=begun, asked=unusual)

    async def on_conversations_opened(self, event: Conversations.Opened) -> None:
        event.stop()
        await self.open_chat(self.store.chat(event.chat_id))
        self.go_to_pane(1)

    def on_conversations_filtered(self, event: Conversations.Filtered) -> None:
        event.stop()
        self._search = event.text
        self.show_list()

    # -- moving about --------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Single-letter keys are off, and gone from the footer, while a text is being typed."""
        if action in _READING and self.typing:
            return False
        if not self.furnished and action in _OWN:
            return False
        return super().check_action(action, parameters)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        self.refresh_bindings()

    def action_write(self) -> None:
        self.composer.question.focus()

    def action_pane(self, by: int) -> None:
        self.go_to_pane((self.pane + by) % len(PANES))

    def go_to_pane(self, index: int) -> None:
        """Show (on a narrow screen) and focus one of PANES."""
        self.pane = index
        for number, (_, name) in enumerate(PANES):
            self.query_one(f"#{name}").set_class(number == index, "-current")
        self._show_tabs()
        targets: tuple[Widget, ...] = (self.listing, self.transcript, self.why)
        if targets[index].display or index != 1:
            targets[index].focus()
        else:
            self.set_focus(None)

    def _show_tabs(self) -> None:
        pieces: list[Any] = []
        for number, (title, _) in enumerate(PANES):
            pieces += [(title, "bold" if number == self.pane else "$faint"), "   "]
        self.query_one("#panetabs", Static).update(Content.assemble(*pieces, ("[ ] panes", "$faint")))

    def action_filter(self) -> None:
        self.go_to_pane(0)
        self.query_one("#filter").focus()

    async def action_move(self, by: int) -> None:
        if self.focused is self.listing:
            (self.listing.action_cursor_down if by > 0 else self.listing.action_cursor_up)()
        else:
            await self.transcript.move(by)

    def leave_composer(self) -> None:
        """From typing to reading; from reading back to the messages."""
        if isinstance(self.focused, Question) or not self.typing:
            self.set_focus(None)  # now: `focus` comes after keys that wait already
            self.go_to_pane(1)
        else:
            self.listing.focus()
