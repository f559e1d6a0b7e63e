"""The conversations: newest first under the day they were last used, filtered as one types."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from vlmconsole.chats.conversation import Conversation
from vlmconsole.chats.records import Chat
from vlmconsole.screens.keys import key_of, with_keys
from vlmconsole.screens.widgets.field import Field
from vlmconsole.text.counts import many
from vlmconsole.text.plain import one_line


def day_name(at: float, now: float) -> str:
    """Today, Yesterday, or the month."""
    then, today = time.localtime(at), time.localtime(now)
    if then[:3] == today[:3]:
        return "Today"
    if then[:3] == time.localtime(now - 86400)[:3]:
        return "Yesterday"
    return time.strftime("%B" if then[0] == today[0] else "%B %Y", then)


class Conversations(Vertical):
    """The list, and what is done to whole conversations. Posts which one a person wants to read."""

    class Opened(Message):
        def __init__(self, chat_id: int) -> None:
            super().__init__()
            self.chat_id = chat_id

    def __init__(
        self,
        conversation: Conversation,
        show_chat: Callable[[Chat | None], Awaitable[None]],
        clock: Callable[[], float],
    ) -> None:
        """`show_chat` opens a conversation on the screen (None: a new one). `clock`: wall time, seconds."""
        super().__init__(id="conversations")
        self._conversation, self._show_chat, self._clock = conversation, show_chat, clock
        self._deleted: list[int] = []

    def compose(self) -> ComposeResult:
        yield Field(placeholder="/ filter", id="filter", compact=True)
        yield OptionList(id="list", compact=True, markup=False)
        yield Static(id="empty")

    @property
    def listing(self) -> OptionList:
        return self.query_one(OptionList)

    def show(self) -> None:
        """The conversations as the store has them, as far as they match the filter; the open one carries the mark."""
        search = self.query_one(Input).value
        chats, current = self._conversation.store.chats(search), self._conversation.chat
        listing, now = self.listing, self._clock()
        listing.clear_options()
        heading = ""
        mark = None
        for chat in chats:
            day = day_name(chat.updated, now)
            if day != heading:
                listing.add_option(Option(Content(day).stylize("$faint"), disabled=True))
                heading = day
            here = current is not None and chat.id == current.id
            title = one_line(chat.title or "new conversation", 80)
            style = "bold" if here else ("" if chat.count else "$muted")
            text = Content.assemble(("▸ " if here else "  ", "$accent"), (title, style))
            if here:
                mark = listing.option_count
            listing.add_option(Option(text, id=str(chat.id)))
        if mark is not None:
            listing.highlighted = mark
        empty = self.query_one("#empty", Static)
        empty.display = not chats
        empty.update(Content("no matches" if search.strip() else "no conversations yet").stylize("$faint"))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option.id is not None:
            self.post_message(self.Opened(int(event.option.id)))

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.show()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.query_one(OptionList).focus()

    # -- the open conversation -----------------------------------------------------------------------------

    def rename(self) -> None:
        from vlmconsole.screens.widgets.dialogs import Ask

        chat = self._conversation.chat
        if chat is None:
            return

        def keep(title: str | None) -> None:
            if title:
                self._conversation.rename(title)
                self.show()

        self.app.push_screen(Ask("Rename the conversation", chat.title), keep)

    def delete(self) -> None:
        """Delete it, once a person has confirmed; `undo` brings it back."""
        from vlmconsole.screens.widgets.dialogs import Confirm

        chat, store = self._conversation.chat, self._conversation.store
        if chat is None:
            return

        async def decided(yes: bool | None) -> None:
            if yes:
                store.delete(chat.id)
                self._deleted.append(chat.id)
                remaining = store.chats()
                await self._show_chat(remaining[0] if remaining else None)
                self.notify(with_keys("deleted; {chat.undo} brings it back"), markup=False)

        title, count = chat.title or "this conversation", many(chat.count, "message")
        self.app.push_screen(Confirm(f"Delete “{title}”?", f"{count}. {key_of('chat.undo')} brings it back."), decided)

    async def undo(self) -> None:
        """Bring back what was deleted last."""
        if not self._deleted:
            self.notify("nothing to undo", markup=False)
            return
        store, chat_id = self._conversation.store, self._deleted.pop()
        store.restore(chat_id)
        chat = store.chat(chat_id)
        await self._show_chat(chat)
        self.notify(f"“{chat.title or 'the conversation'}” restored", markup=False)

    def export(self, parent: Path) -> None:
        """Markdown, JSON and pictures into a new folder under `parent`."""
        from vlmconsole.chats.export import export_chat

        if self._conversation.chat is not None:
            exported = export_chat(self._conversation.store, self._conversation.chat.id, parent)
            self.notify(f"exported to {exported.folder}", markup=False)
