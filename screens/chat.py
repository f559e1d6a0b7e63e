"""The chat screen: conversations │ messages with their pictures │ why. Managing conversations lives here."""

from __future__ import annotations

from vlmconsole.screens.chat_ask import ChatAsk
from vlmconsole.screens.widgets.dialogs import Ask, Confirm

from vlmconsole.runs.folder import write_atomic


class ChatScreen(ChatAsk):
    """Key actions on messages and conversations; see keys.py for the keys."""

    def __init__(self) -> None:
        super().__init__()
        self._deleted: list[int] = []

    async def action_new(self) -> None:
        await self.open_chat(None)
        self.go_to_pane(1)
        self.action_write()

    def action_rename(self) -> None:
        chat = self.chat
        if chat is None:
            return

        def keep(title: str | None) -> None:
            if title:
                self.store.set_chat(chat.id, title=title)
                self.chat = self.store.chat(chat.id)
                self.show_list()

        self.app.push_screen(Ask("Rename the conversation", chat.title), keep)

    def action_delete(self) -> None:
        chat = self.chat
        if chat is None:
            return
        title = chat.title or "this conversation"

        async def decided(yes: bool | None) -> None:
            if yes:
                self.store.delete(chat.id)
                self._deleted.append(chat.id)
                remaining = self.store.chats()
                await self.open_chat(remaining[0] if remaining else None)
                self.notify("deleted; u brings it back", markup=False)

        self.app.push_screen(Confirm(f"Delete “{title}”?", f"{chat.count} messages. u brings it back."), decided)

    async def action_undo(self) -> None:
        if not self._deleted:
            self.notify("nothing was deleted here", markup=False)
            return
        chat_id = self._deleted.pop()
        self.store.restore(chat_id)
        await self.open_chat(self.store.chat(chat_id))

    def action_copy(self) -> None:
        message = self.transcript.selected
        if message is None:
            return
        path = self.console.lab.places.home / "copied.txt"
        write_atomic(path, message.text)
        # Whether the terminal takes it cannot be known (tmux drops it by default): so a file as well.
        self.app.copy_to_clipboard(message.text)
        self.notify(f"sent to terminal, and saved in {path}", markup=False)
