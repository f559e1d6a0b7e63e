"""The chat screen: conversations │ messages with their pictures │ why, and the composer below them.

What the first frame does not need is imported by what shows it: dialogs by their action, the panes by `_furnish`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from textual.containers import Center, Horizontal, Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from vlmconsole.chats.conversation import Conversation
from vlmconsole.chats.records import Chat
from vlmconsole.chats.store import ChatStore
from vlmconsole.errors import LabError
from vlmconsole.screens.chat import settings
from vlmconsole.screens.chat.ask import ANSWERING, Asker
from vlmconsole.screens.chat.attachments import Attachments
from vlmconsole.screens.chat.budget import Budgeter
from vlmconsole.screens.chat.composer import Composer
from vlmconsole.screens.chat.drafts import Drafts
from vlmconsole.screens.chat.hints import FAULT
from vlmconsole.screens.chat.question import QuestionArea
from vlmconsole.screens.keys import key_of, own_actions, with_keys
from vlmconsole.screens.paned import Pane, PanedScreen
from vlmconsole.screens.widgets.topbar import TopBar

if TYPE_CHECKING:
    from vlmconsole.models.messages import Message
    from vlmconsole.screens.chat.conversations import Conversations
    from vlmconsole.screens.chat.transcript import Transcript
    from vlmconsole.screens.chat.why_panel import WhyPanel
    from vlmconsole.screens.link import ServerLink
    from vlmconsole.vision.images import Picture

_OWN = own_actions("chat")


def welcome() -> Content:
    """Return the first page, with the keys as they are now."""
    return Content.assemble(
        ("Ask about an image", "bold"),
        ("\n\nPaste or drop a path, or press ", "$muted"),
        (key_of("chat.attach"), "$accent"),
        (" to choose one.\nType a question and press ", "$muted"),
        ("Enter", "$accent"),
        (".\n\n", "$muted"),
        (key_of("chat.leave"), "$accent"),
        (" leaves the message box, then ", "$muted"),
        (key_of("app.help"), "$accent"),
        (" shows every key.", "$muted"),
    )


class ChatScreen(PanedScreen):
    """Wires what a chat is made of: a conversation, its panes, the composer, and the answers on their way."""

    ENTRY = "chat"
    PANES = (Pane("Conversations", "conversations"), Pane("Messages", "middle"), Pane("Why", "why"))
    AUTO_FOCUS = ""  # a closed dialog must not put a person who was reading back into the composer

    def __init__(self) -> None:
        super().__init__()
        self.asker = Asker(self)
        self.pane = 1
        self.furnished = False
        self._folder: Path | None = None  # where a picture was chosen last
        self._counted_for: tuple[ServerLink, str] | None = None  # the server and its state when it last changed

    # -- what it is made of --------------------------------------------------------------------------------

    @cached_property
    def conversation(self) -> Conversation:
        return Conversation(self._open_store, self.console.lab.settings)

    def _open_store(self) -> ChatStore:
        places = self.console.lab.places
        return ChatStore(places.chats, places.pictures, clock=self.console.clock)

    @cached_property
    def attachments(self) -> Attachments:
        return Attachments(self.console.lab.settings.background)

    @cached_property
    def budgeter(self) -> Budgeter:
        return Budgeter(self.conversation, lambda: self.console.link)

    @cached_property
    def drafts(self) -> Drafts:
        return Drafts(self.conversation)

    @property
    def composer(self) -> Composer:
        return self.query_one(Composer)

    @property
    def conversations(self) -> Conversations:
        return cast("Conversations", self.query_one("#conversations"))

    @property
    def transcript(self) -> Transcript:
        return cast("Transcript", self.query_one("#transcript"))

    @property
    def why(self) -> WhyPanel:
        return cast("WhyPanel", self.query_one("#why"))

    @property
    def commands(self) -> dict[str, Callable[[str], Awaitable[None]]]:
        """What may be typed in place of a question (keys.TYPED); each gets the words after it."""
        return {
            "/image": self.composer.image,
            "/paste": self.composer.paste,
            "/adapter": partial(settings.adapter_command, self),
            "/recent": partial(settings.send_recent, self),
        }

    def compose_panes(self) -> Iterable[Widget]:
        with Horizontal(id="panes"):
            # The first frame is what one needs to begin: the rest of the furniture follows in `_furnish`.
            yield Static(classes="hold -left")
            with Vertical(id="middle", classes="-current"), Center(id="welcome"):
                yield Static(welcome())
            yield Static(classes="hold -right")
        yield Composer(self.conversation, self.attachments, self.budgeter, self.drafts)

    def on_mount(self) -> None:
        self.composer.question.focus()
        self.call_after_refresh(self._furnish)

    async def _furnish(self) -> None:
        """After the first frame: the panes, and the newest conversation, where one left off."""
        from vlmconsole.screens.chat.conversations import Conversations
        from vlmconsole.screens.chat.transcript import Transcript
        from vlmconsole.screens.chat.why_panel import WhyPanel

        panes, middle = self.query_one("#panes"), self.query_one("#middle")
        transcript = Transcript(self.conversation, drawing=self.console.drawing, id="transcript")
        transcript.display = False
        await panes.remove_children(".hold")
        await panes.mount(Conversations(self.conversation, self.open_chat, self.console.clock), before=middle)
        await panes.mount(WhyPanel(id="why"), after=middle)
        await middle.mount(transcript)
        self.furnished = True
        self.mark_panes()
        self.show_server()
        self.refresh_bindings()
        with suppress(LabError):  # a full disk, say: what was deleted long ago can wait
            self.conversation.store.purge()
        newest = self.conversation.store.chats()
        await self.open_chat(newest[0] if newest else None)
        if not self.composer.question.text and not self.attachments.pictures:
            await self._restore_draft()

    async def _restore_draft(self) -> None:
        try:
            draft = self.drafts.lost()
        except LabError as error:
            self.notify(
                f"the draft cannot be restored now, and remains stored: {error}", severity="warning", markup=False
            )
            return
        if draft is None:
            return
        known = {chat.id: chat for chat in self.conversation.store.chats()}
        await self.open_chat(known.get(draft.chat_id) if draft.chat_id is not None else None)
        await self.composer.restore(draft)

    # -- showing -------------------------------------------------------------------------------------------

    async def open_chat(self, chat: Chat | None) -> None:
        """Show a conversation (None: an empty one that is stored with its first question).

        What is written goes along, and changes no question there.
        """
        before = self.conversation.chat
        self.composer.forget_cost()
        if self.conversation.changing is not None and (chat is None or before is None or chat.id != before.id):
            await self.composer.end_change()
        self.conversation.open(chat)
        await self.transcript.show()
        self.conversations.show()
        self.show_welcome()
        self.show_server()
        self.composer.store_draft_soon()
        if self.composer.written:
            self.composer.count_soon()

    def show_welcome(self) -> None:
        empty = not self.conversation.messages
        self.query_one("#welcome").display = empty
        self.transcript.display = not empty

    def show_server(self) -> None:
        """The status line, the settings under the numbers, and what waits for the server."""
        link, bar = self.console.link, self.query_one(TopBar)
        if link is None:
            fault = self.console.no_server
            bar.show(*(("failed", f"{self.console.lab.settings.server} · failed") if fault else ("starting", "…")), "")
            if fault and self.furnished:
                self.composer.hints.notice(fault, "$error", about=FAULT)
            return
        view = link.view.with_adapter(self.conversation.sampling.adapter)
        bar.show(view.state, view.short, view.long)
        if not self.furnished:
            return
        self.why.show_settings(link.settings, link.profile.name)
        if view.state == "failed":
            self.composer.hints.notice(view.note, "$error", about=FAULT)
        elif view.state == "ready":
            self.composer.hints.withdraw(FAULT)
        self.asker.show_waiting()
        if (link, view.state) != self._counted_for:
            # What was written before its server was there is counted, and its pictures are, once it is.
            self._counted_for = link, view.state
            if self.composer.written:
                self.composer.in_turn(self.composer.show_pictures)

    def show_why(self) -> None:
        """The numbers of the chosen answer; of one that is being given, those that stand already."""
        from vlmconsole.screens.chat.columns import PanelRow
        from vlmconsole.screens.chat.why import asked_with, unusual_rows

        answer, answers = self.transcript.chosen_answer, self.conversation.answers()
        number = next((i for i, item in enumerate(answers, 1) if answer is not None and item.id == answer.id), 0)
        begun = self.asker.begun.get(answer.id) if answer is not None else None
        usual = self.console.lab.settings
        asked = asked_with(answer.answer) if answer is not None and answer.answer else self.conversation.asked()
        unusual = unusual_rows(asked, temperature=usual.temperature, max_tokens=usual.max_tokens)
        if self.conversation.chat is not None and self.conversation.chat.damaged:
            unusual.append(PanelRow("its settings", "damaged: using the defaults", "$warning"))
        self.why.show(answer, number, len(answers), ttft_s=begun, asked=unusual)

    def on_transcript_selected(self, event: Transcript.Selected) -> None:
        event.stop()
        self.show_why()

    async def on_conversations_opened(self, event: Conversations.Opened) -> None:
        event.stop()
        await self.open_chat(self.conversation.store.chat(event.chat_id))
        self.go_to_pane(1)

    # -- moving about --------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Nothing is done with panes that are not there yet, and nothing stopped that does not run."""
        if action in _OWN and not self.furnished:
            return False
        if action == "stop" and not self.asker.running:
            return False
        return super().check_action(action, parameters)

    def action_write(self) -> None:
        self.composer.question.focus()

    def target(self, index: int) -> Widget | None:
        transcript = self.transcript if self.transcript.display else None
        return (self.conversations.listing, transcript, self.why)[index]

    def action_filter(self) -> None:
        self.go_to_pane(0)
        self.query_one("#filter").focus()

    async def action_move(self, by: int) -> None:
        listing = self.conversations.listing
        if self.focused is listing:
            (listing.action_cursor_down if by > 0 else listing.action_cursor_up)()
        else:
            await self.transcript.move(by)

    def leave_composer(self) -> None:
        """From typing to reading; from reading back to the messages."""
        if isinstance(self.focused, QuestionArea) or not self.typing:
            self.set_focus(None)  # now: `focus` comes after keys that wait already
            self.go_to_pane(1)
        else:
            self.conversations.listing.focus()

    async def action_leave(self) -> None:
        """Esc: leave the composer or the filter. Outside of them: stop changing a question; an answer goes on."""
        if self.typing:
            self.leave_composer()
            if self.asker.running:
                self.composer.hints.notice(with_keys(ANSWERING), about=FAULT)
        elif self.conversation.changing is not None:
            await self.composer.cancel_change()
        elif self.asker.running:
            self.composer.hints.notice(with_keys(ANSWERING), "$warning", about=FAULT)
        else:
            self.leave_composer()

    # -- asking --------------------------------------------------------------------------------------------

    def on_question_area_sent(self, event: QuestionArea.Sent) -> None:
        event.stop()
        self.composer.in_turn(partial(self.asker.send, event.text))

    def on_question_area_interrupted(self) -> None:
        self.asker.stop()

    def action_stop(self) -> None:
        self.asker.stop()

    async def action_again(self) -> None:
        if (old := self.transcript.chosen_answer) is not None:
            await self.asker.again(old)

    async def action_change(self) -> None:
        """Put the chosen question back into the composer; sending it replaces it and what followed."""
        asked = self.transcript.chosen_question
        if asked is None:
            return
        if self.asker.running:
            self.notify(with_keys(ANSWERING), severity="warning", markup=False)
        elif await self.composer.begin_change(asked):
            self.action_write()

    async def write(self, text: str, pictures: Sequence[Picture]) -> None:
        """Begin a new conversation with a question in the message box; what was being written follows it."""
        await self.open_chat(None)
        self.go_to_pane(1)
        await self.composer.give_back(text, list(pictures))
        self.action_write()

    async def ask_turns(self, messages: Sequence[Message], title: str) -> None:
        """Begin a conversation of these turns, which a message box could not hold, and have the last one answered."""
        link = self.console.link
        if self.asker.fault or link is None:
            self.notify(self.asker.fault, severity="warning", markup=False)
            return
        await self.open_chat(None)
        self.conversation.begin(messages, link.profile.name, title)
        await self.open_chat(self.conversation.chat)
        await self.asker.answer(link)
        self.go_to_pane(1)

    def action_both(self) -> None:
        from vlmconsole.screens.chat.pair import ask_second_server

        ask_second_server(self)

    def action_pair(self) -> None:
        from vlmconsole.screens.chat.pair import show_pair

        show_pair(self)

    # -- the question that is being written ----------------------------------------------------------------

    def action_attach(self) -> None:
        """Ctrl+O: choose a picture from a list, with preview."""
        from vlmconsole.screens.chat.picker import Picker, sample_folder

        async def chosen(path: Path | None) -> None:
            if path is not None:
                self._folder = path.parent
                await self.composer.attach([path])

        places = {"here": Path.cwd(), "samples": sample_folder(), "inbox": self.console.lab.places.inbox}
        self.app.push_screen(Picker(self._folder or Path.cwd(), places, self.console.drawing), chosen)

    def action_paste(self) -> None:
        """p: the picture in the clipboard of this desktop."""
        self.composer.in_turn(self.composer.paste)

    async def action_fit(self) -> None:
        """Ctrl+T."""
        await self.composer.fit()

    def action_empty(self) -> None:
        """Ctrl+G: all of what is written away; the pictures stay."""
        self.composer.question.replace_all("")

    # -- settings of the conversation ----------------------------------------------------------------------

    def action_sampling(self) -> None:
        settings.set_sampling(self)

    def action_adapter(self) -> None:
        settings.choose_adapter(self)

    def action_server(self) -> None:
        settings.choose_server(self)

    def action_recent(self) -> None:
        """Ctrl+R: what fits beside the question that is being written, which stays."""
        self.composer.in_turn(partial(settings.send_recent, self, ""))

    # -- conversations -------------------------------------------------------------------------------------

    async def action_new(self) -> None:
        await self.open_chat(None)
        self.go_to_pane(1)
        self.action_write()

    def action_rename(self) -> None:
        self.conversations.rename()

    def action_delete(self) -> None:
        self.conversations.delete()

    async def action_undo(self) -> None:
        await self.conversations.undo()

    def action_export(self) -> None:
        self.conversations.export(self.console.lab.places.home / "exports")

    # -- the chosen message --------------------------------------------------------------------------------

    def action_details(self) -> None:
        """Enter: open the highlighted conversation; in the messages, the evidence of the chosen answer."""
        if self.focused is self.conversations.listing:
            self.conversations.listing.action_select()
        else:
            self.transcript.show_evidence()

    def action_open_picture(self) -> None:
        self.transcript.open_picture()

    def action_zoom_picture(self) -> None:
        self.transcript.zoom_picture()

    def action_copy(self) -> None:
        self.transcript.copy_message(self.console.lab.places.home / "copied.txt")
