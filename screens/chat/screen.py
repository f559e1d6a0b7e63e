"""The chat screen: conversations │ messages with their pictures │ why. Managing conversations lives here.

Dialogs are imported by the action that shows them: the first frame does not wait for what may never be opened.
"""

from __future__ import annotations

from pathlib import Path

from vlmconsole.runs.folder import write_atomic
from vlmconsole.screens.chat.attach import open_outside
from vlmconsole.screens.chat.recent import ChatRecent
from vlmconsole.text.counts import many


class ChatScreen(ChatRecent):
    """Key actions on messages and conversations; see keys.py for the keys."""

    def __init__(self) -> None:
        super().__init__()
        self._deleted: list[int] = []
        self._folder: Path | None = None

    async def action_new(self) -> None:
        await self.open_chat(None)
        self.go_to_pane(1)
        self.action_write()

    def action_rename(self) -> None:
        from vlmconsole.screens.widgets.dialogs import Ask

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
        from vlmconsole.screens.widgets.dialogs import Confirm

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

        self.app.push_screen(
            Confirm(f"Delete “{title}”?", f"{many(chat.count, 'message')}. u brings it back."), decided
        )

    async def action_undo(self) -> None:
        if not self._deleted:
            self.notify("nothing was deleted here", markup=False)
            return
        chat_id = self._deleted.pop()
        self.store.restore(chat_id)
        chat = self.store.chat(chat_id)
        await self.open_chat(chat)
        self.notify(f"“{chat.title or 'the conversation'}” is back", markup=False)

    def action_export(self) -> None:
        """e: Markdown, JSON and pictures into a new folder under the lab home."""
        if self.chat is None:
            return
        from vlmconsole.chats.export import export_chat

        made = export_chat(self.store, self.chat.id, self.console.lab.places.home / "exports")
        self.notify(f"exported to {made.folder}", markup=False)

    def action_details(self) -> None:
        """Enter: the raw request, usage and conditions of the chosen answer."""
        from vlmconsole.screens.chat.evidence import evidence
        from vlmconsole.screens.widgets.dialogs import Reader

        if self.focused is self.listing:
            self.listing.action_select()
            return
        message = self.chosen_answer()
        if message is None or message.answer is None:
            self.notify("no answer with evidence is chosen", markup=False)
            return
        self.app.push_screen(Reader("Evidence", evidence(message, self.store.request(message.id))))

    def action_sampling(self) -> None:
        """s: system prompt, temperature, longest answer, seed and top-p of this conversation."""
        from vlmconsole.chats.sampling import checked_sampling
        from vlmconsole.screens.widgets.dialogs import Form

        fields = (
            ("system", "system prompt", self.system, "none"),
            ("temperature", "temperature", f"{self.temperature:g}", "0 is greedy"),
            ("max_tokens", "longest answer", str(self.max_tokens), "tokens"),
            ("seed", "seed", _set(self.sampling.get("seed")), "the server's own"),
            ("top_p", "top-p", _set(self.sampling.get("top_p")), "the server's own"),
        )

        def keep(values: dict[str, str] | None) -> None:
            if values is None:
                return
            together = {**self.sampling, **checked_sampling(values)[0]}
            sampling = {name: value for name, value in together.items() if value is not None}
            self.keep_settings(system=values["system"].strip(), sampling=sampling)
            self.show_budget()
            self.show_why()

        form = Form("This conversation", fields, lambda values: checked_sampling(values)[1])
        self.app.push_screen(form, keep)

    def action_server(self) -> None:
        """S: another server answers from now on."""
        from vlmconsole.screens.widgets.dialogs import Choose

        options = [(p.name, p.name, p.title or p.base_url) for p in self.console.profiles().values()]

        def chosen(name: str | None) -> None:
            if name is not None:
                self.console.choose_server(name)
                if self.chat is not None:
                    self.store.set_chat(self.chat.id, server=name)

        link = self.console.link
        current = link.profile.name if link is not None else self.console.lab.settings.server
        self.app.push_screen(Choose("Choose a server", options, current), chosen)

    def action_attach(self) -> None:
        """Ctrl+O: choose a picture from a list, with preview."""
        from vlmconsole.screens.chat.picker import Picker, sample_folder

        async def chosen(path: Path | None) -> None:
            if path is not None:
                self._folder = path.parent
                await self.attach([path])

        places = {"here": Path.cwd(), "samples": sample_folder(), "inbox": self.console.lab.places.inbox}
        self.app.push_screen(Picker(self._folder or Path.cwd(), places, self.console.drawing), chosen)

    def action_open_picture(self) -> None:
        """o: open the chosen message's picture with the system's own viewer."""
        asked = self.chosen_question()
        if asked is None or not asked.pictures:
            self.notify("no picture with the chosen message", markup=False)
            return
        path = asked.pictures[0].path
        said = open_outside(path)
        self.notify(said or f"opened {path}", severity="warning" if said else "information", markup=False)

    def action_zoom_picture(self) -> None:
        """z: the chosen message's picture on the whole screen."""
        from vlmconsole.screens.pictures.zoom import Zoom

        asked = self.chosen_question()
        if asked is not None and asked.pictures:
            self.app.push_screen(Zoom(asked.pictures[0], self.console.drawing))

    def action_copy(self) -> None:
        message = self.transcript.selected
        if message is None:
            return
        path = self.console.lab.places.home / "copied.txt"
        write_atomic(path, message.text)
        # Whether the terminal takes it cannot be known (tmux drops it by default): so a file as well.
        self.app.copy_to_clipboard(message.text)
        self.notify(f"sent to terminal, and saved in {path}", markup=False)


def _set(value: object) -> str:
    """A setting as one would type it; nothing for one that is not set."""
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
