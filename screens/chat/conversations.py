"""The list of conversations: newest first under the day they were last used, filtered as one types."""

from __future__ import annotations

import time
from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from vlmconsole.chats.records import Chat
from vlmconsole.screens.widgets.field import Field
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
    """Posts what a person asks for; the screen does it."""

    class Opened(Message):
        def __init__(self, chat_id: int) -> None:
            super().__init__()
            self.chat_id = chat_id

    class Filtered(Message):
        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def compose(self) -> ComposeResult:
        yield Field(placeholder="/ filter", id="filter", compact=True)
        yield OptionList(id="list", compact=True, markup=False)
        yield Static(id="empty")

    @property
    def listing(self) -> OptionList:
        return self.query_one(OptionList)

    def show(self, chats: Sequence[Chat], current: int | None, now: float, *, searching: bool) -> None:
        """Put `chats` (newest first) into the list; `current` carries the mark."""
        listing = self.query_one(OptionList)
        listing.clear_options()
        heading = ""
        mark = None
        for chat in chats:
            day = day_name(chat.updated, now)
            if day != heading:
                listing.add_option(Option(Content(day).stylize("$faint"), disabled=True))
                heading = day
            here = chat.id == current
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
        empty.update(Content("nothing found" if searching else "no conversations yet").stylize("$faint"))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option.id is not None:
            self.post_message(self.Opened(int(event.option.id)))

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.Filtered(event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.query_one(OptionList).focus()
