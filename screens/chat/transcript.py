"""The messages of one conversation, newest at the bottom; only a window of them is mounted at a time."""

from __future__ import annotations

from pathlib import Path

from textual.containers import VerticalScroll
from textual.message import Message

from vlmconsole.chats.conversation import NEWEST, Conversation
from vlmconsole.chats.records import StoredMessage
from vlmconsole.runs.folder import write_atomic
from vlmconsole.screens.chat.message import MessageView
from vlmconsole.screens.chat.why import proofs
from vlmconsole.screens.terminal.terminal import Drawing

#: Messages mounted when an end of the window is reached, and mounted at most; NEWEST are when a conversation opens.
STEP, MOST = 16, 64


class Transcript(VerticalScroll):
    """Shows the messages of a conversation and which one is chosen. Whoever changes them says so."""

    class Selected(Message):
        """Another message is chosen; `message` is None in an empty conversation."""

        def __init__(self, message: StoredMessage | None) -> None:
            super().__init__()
            self.message = message

    def __init__(self, conversation: Conversation, *, drawing: Drawing, id: str | None = None) -> None:
        super().__init__(id=id)
        self.conversation = conversation
        self.drawing = drawing
        self.chosen = -1
        self._low = self._high = 0
        self._moving = False

    @property
    def messages(self) -> list[StoredMessage]:
        return self.conversation.messages

    # Textual scrolls an anchored widget to a negative place while its content is shorter than itself (8.2.8), so
    # the anchor only counts once there is something to scroll.
    @property
    def _anchored(self) -> bool:
        return self._wants_anchor and self.virtual_size.height > self.container_size.height

    @_anchored.setter
    def _anchored(self, anchored: bool) -> None:
        self._wants_anchor = anchored

    # -- content -------------------------------------------------------------------------------------------

    async def show(self) -> None:
        """Another conversation, or this one read again: mount its newest messages."""
        self._high = len(self.messages)
        self._low = max(0, self._high - NEWEST)
        await self.remove_children(MessageView)
        if self.messages:
            await self.mount_all([self._view(index) for index in range(self._low, self._high)])
        self.choose(self._high - 1)
        self.anchor()

    async def append(self) -> None:
        """The conversation has a new message: put it at the bottom, in view."""
        if self._high < len(self.messages) - 1:  # a person was reading further up
            await self.show()
            return
        self._high = len(self.messages)
        await self.mount(self._view(self._high - 1))
        await self._trim(top=True)
        self.choose(self._high - 1)
        self.anchor()

    def view_of(self, message_id: int) -> MessageView | None:
        """Return the mounted view of a message, None when it is outside the window."""
        return next((view for view in self.query(MessageView) if view.message.id == message_id), None)

    def update_message(self, message: StoredMessage) -> None:
        """A message reached its next state."""
        ids = [known.id for known in self.messages]
        if message.id in ids[1:] and (asked := self.view_of(ids[ids.index(message.id) - 1])):
            asked.show_proofs(proofs(message.answer or {}))
        if view := self.view_of(message.id):
            view.update_message(message)
        if self.selected is not None and self.selected.id == message.id:
            self.post_message(self.Selected(message))

    # -- choosing ------------------------------------------------------------------------------------------

    @property
    def selected(self) -> StoredMessage | None:
        return self.messages[self.chosen] if 0 <= self.chosen < len(self.messages) else None

    @property
    def chosen_answer(self) -> StoredMessage | None:
        """The chosen message if it is an answer, else the answer to the chosen question."""
        return self.conversation.answer_at(self.chosen)

    @property
    def chosen_question(self) -> StoredMessage | None:
        """The chosen message if it is a question, else the question of the chosen answer."""
        return self.conversation.question_at(self.chosen)

    def choose(self, index: int, *, reveal: bool = False) -> None:
        self.chosen = max(-1, min(index, len(self.messages) - 1))
        message = self.selected
        for view in self.query(MessageView):
            chosen = message is not None and view.message.id == message.id
            view.set_class(chosen, "-chosen")
            if chosen and reveal:
                self.release_anchor()
                view.scroll_visible(animate=False)
        self.post_message(self.Selected(message))

    async def move(self, by: int) -> None:
        """Choose the next (1) or previous (-1) message; loads more of the conversation at the window's ends."""
        target = max(0, min(self.chosen + by, len(self.messages) - 1))
        if target < self._low:
            await self._earlier()
        elif target >= self._high:
            await self._later()
        self.choose(target, reveal=True)

    def on_message_view_chosen(self, event: MessageView.Chosen) -> None:
        event.stop()
        ids = [message.id for message in self.messages]
        self.choose(ids.index(event.view.message.id))

    # -- the chosen message --------------------------------------------------------------------------------

    def show_evidence(self) -> None:
        """The raw request, usage and conditions of the chosen answer."""
        from vlmconsole.screens.chat.evidence import evidence
        from vlmconsole.screens.widgets.dialogs import Reader

        message = self.chosen_answer
        if message is None or message.answer is None:
            self.notify("select an answer first", markup=False)
            return
        request = self.conversation.store.request(message.id)
        self.app.push_screen(Reader("Evidence", evidence(message, request)))

    def open_picture(self) -> None:
        """The chosen message's picture in the system's own viewer."""
        from vlmconsole.screens.outside import open_outside

        asked = self.chosen_question
        if asked is None or not asked.pictures:
            self.notify("the selected message has no image", markup=False)
            return
        path = asked.pictures[0].path
        fault = open_outside(path)
        self.notify(fault or f"opened {path}", severity="warning" if fault else "information", markup=False)

    def zoom_picture(self) -> None:
        """The chosen message's picture on the whole screen."""
        from vlmconsole.screens.pictures.zoom import Zoom

        asked = self.chosen_question
        if asked is not None and asked.pictures:
            self.app.push_screen(Zoom(asked.pictures[0], self.drawing))

    def copy_message(self, path: Path) -> None:
        """The chosen message into the clipboard, and into `path`: tmux drops what is copied, and nobody can know."""
        if self.selected is None:
            return
        write_atomic(path, self.selected.text)
        self.app.copy_to_clipboard(self.selected.text)
        self.notify(f"copied, and saved in {path}", markup=False)

    # -- the window ----------------------------------------------------------------------------------------

    def watch_scroll_y(self, old: float, new: float) -> None:
        super().watch_scroll_y(old, new)
        if self._moving or not self.is_attached:
            return
        if new < old and new < 6 and self._low > 0:
            self.call_later(self._earlier)
        elif new > old and new > self.max_scroll_y - 6 and self._high < len(self.messages):
            self.call_later(self._later)

    async def _earlier(self) -> None:
        if self._moving or self._low == 0:
            return
        self._moving = True
        low = max(0, self._low - STEP)
        views = [self._view(index) for index in range(low, self._low)]
        before = self.virtual_size.height
        at = self.scroll_y
        await self.mount_all(views, before=0)
        self._low = low
        self.call_after_refresh(self._hold, at, before)

    def _hold(self, at: float, before: int) -> None:
        """Keep what the person reads where it is after messages were put above it."""
        self.release_anchor()
        self.scroll_to(y=at + (self.virtual_size.height - before), animate=False, immediate=True)
        self._moving = False
        self.call_later(self._trim, top=False)

    async def _later(self) -> None:
        if self._moving or self._high >= len(self.messages):
            return
        high = min(len(self.messages), self._high + STEP)
        await self.mount_all([self._view(index) for index in range(self._high, high)])
        self._high = high
        await self._trim(top=True)

    async def _trim(self, *, top: bool) -> None:
        views = list(self.query(MessageView))
        extra = len(views) - MOST
        if extra <= 0:
            return
        gone = views[:extra] if top else views[-extra:]
        lost = sum(view.outer_size.height for view in gone)
        at = self.scroll_y
        self._moving = True
        await self.remove_children(gone)
        if top:
            self._low += extra
            if not self.is_vertical_scroll_end:
                self.scroll_to(y=max(0, at - lost), animate=False, immediate=True)
        else:
            self._high -= extra
        self._moving = False

    def _view(self, index: int) -> MessageView:
        message = self.conversation.whole(index)
        follower = self.conversation.whole(index + 1) if index + 1 < len(self.messages) else None
        return MessageView(
            message,
            drawing=self.drawing,
            picture_cells=self._cells(len(message.pictures)),
            proofs=proofs(follower.answer or {}) if follower is not None and message.role == "user" else None,
        )

    def _cells(self, pictures: int) -> tuple[int, int]:
        """Cells for one picture: a third of the height that is there, smaller when a message carries many."""
        rows = max(6, min(14, self.app.size.height // 3))
        columns = max(16, min(40, (self.size.width or self.app.size.width) - 30))
        return (columns, rows) if pictures <= 2 else (min(28, columns), max(5, rows // 2))
