"""Attaching and asking: from what is typed and pasted to an answer in the transcript."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from textual import work
from vlmconsole.screens.attach import await_in_inbox, open_all
from vlmconsole.screens.chat_desk import ChatDesk
from vlmconsole.screens.link import ServerLink
from vlmconsole.screens.terminal import scp_line, under_ssh
from vlmconsole.screens.turn import Turn
from vlmconsole.screens.widgets.composer import Chip, Composer, Question

from vlmconsole.chats.records import StoredMessage
from vlmconsole.runs.plain import one_line

if TYPE_CHECKING:
    from vlmconsole.vision.images import Picture

COMMAND = "/image"


class ChatAsk(ChatDesk):
    """Holds the pictures that wait to be sent and the answers that are being given."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: list[Picture] = []
        self.running: list[Turn] = []

    # -- pictures ------------------------------------------------------------------------------------------

    async def on_question_pasted(self, event: Question.Pasted) -> None:
        """A paste: picture paths become chips, everything else stays text."""
        event.stop()
        from vlmconsole.vision.paths import parse_paths

        pasted = await asyncio.to_thread(parse_paths, event.text)
        if pasted.text:
            self.composer.question.insert(pasted.text.replace("\r\n", "\n").replace("\r", "\n"))
        if pasted.found:
            await self.attach(list(pasted.found))
        if pasted.missing:
            self._expect(list(pasted.missing))

    async def attach(self, paths: list[Path]) -> None:
        """Check files and show them as chips; what cannot be sent is said under the question."""
        self.composer.notice("reading the picture…")
        made = await open_all(paths, background=self.console.lab.settings.background)
        self.pending.extend(made.pictures)
        await self.show_pending()
        self.composer.notice("  ".join(made.errors), "$error")

    async def show_pending(self) -> None:
        link = self.console.link
        await self.composer.show_chips(
            [(picture, link.visual_tokens(picture) if link else None) for picture in self.pending]
        )
        self.show_budget()

    def _expect(self, missing: list[Path]) -> None:
        """Paths that are not here: over SSH they are the laptop's, and a line of scp brings them."""
        names = ", ".join(one_line(path.name, 60) for path in missing)
        if not under_ssh():
            self.composer.notice(f"not found: {', '.join(one_line(path, 120) for path in missing)}", "$error")
            return
        inbox = self.console.lab.places.inbox
        lines = "\n".join(one_line(scp_line(str(path), str(inbox)), 400) for path in missing)
        self.composer.add_class("-tall")
        self.composer.notice(
            f"{names} is not on this machine. Run this where it is; it is attached on arrival:\n{lines}"
        )
        self._watch_inbox(inbox, {path.name for path in missing})

    @work(group="inbox", exclusive=True, exit_on_error=False)
    async def _watch_inbox(self, inbox: Path, names: set[str]) -> None:
        arrived: list[Path] = []
        await await_in_inbox(inbox, names, arrived.append)
        self.composer.remove_class("-tall")
        await self.attach(arrived)

    async def on_chip_removed(self, event: Chip.Removed) -> None:
        event.stop()
        if event.index < len(self.pending):
            del self.pending[event.index]
        await self.show_pending()

    async def on_question_emptied(self, event: Question.Emptied) -> None:
        event.stop()
        if self.pending:
            self.pending.pop()
            await self.show_pending()

    # -- budget --------------------------------------------------------------------------------------------

    def on_text_area_changed(self) -> None:
        self.composer.notice()
        self.show_budget()

    def show_budget(self) -> None:
        """What the next question would take of the context, beside the composer."""

    # -- asking --------------------------------------------------------------------------------------------

    async def on_composer_sent(self, event: Composer.Sent) -> None:
        """Send what is typed, unless something stands against it; then say what, and send nothing."""
        event.stop()
        text = event.text.strip()
        if text == COMMAND or text.startswith(f"{COMMAND} "):
            self.composer.question.clear()
            await self._image_command(text.removeprefix(COMMAND).strip())
            return
        if not text and not self.pending:
            return
        if fault := self._fault():
            self.composer.notice(fault, "$warning")
            return
        pictures, self.pending = self.pending, []
        self.composer.question.clear()
        await self.show_pending()
        await self.ask(text, pictures)

    async def _image_command(self, words: str) -> None:
        from vlmconsole.vision.paths import parse_paths

        if not words:
            self.composer.notice(f"{COMMAND} PATH attaches a picture", "$warning")
            return
        pasted = await asyncio.to_thread(parse_paths, words)
        if pasted.found:
            await self.attach(list(pasted.found))
        if pasted.missing:
            self._expect(list(pasted.missing))
        if not pasted.found and not pasted.missing:
            self.composer.notice(f"no picture named: {one_line(words, 120)}", "$error")

    def _fault(self) -> str:
        """Why nothing can be sent now, "" when it can."""
        link = self.console.link
        if self.running:
            return "an answer is being given; Esc stops it"
        if link is None:
            return "no server is chosen; S chooses one"
        return ""

    async def ask(self, text: str, pictures: list[Picture]) -> None:
        """Store the question and have it answered by the server in use."""
        link = self.console.link
        if link is None:
            return
        if self.chat is None:
            self.chat = self.store.new_chat(server=link.profile.name, title=one_line(text, 60) or pictures[0].name)
        question = self.store.add(self.chat.id, "user", text, pictures=pictures)
        await self.transcript.append(question)
        self.show_welcome()
        await self.answer(link)

    async def answer(self, link: ServerLink) -> None:
        """Have the conversation's last question answered by `link`, in the background."""
        assert self.chat is not None
        message = self.store.add(self.chat.id, "assistant", "", state="streaming", server=link.profile.name)
        self.chat = self.store.chat(self.chat.id)
        await self.transcript.append(message)
        self.show_list()
        self._answer(link, message)

    @work(group="answer", exit_on_error=False)
    async def _answer(self, link: ServerLink, message: StoredMessage) -> None:
        assert self.chat is not None
        settings = self.console.lab.settings
        sampling = self.chat.sampling

        def show(text: str) -> None:
            if view := self.transcript.view_of(message.id):
                view.grow(text)

        turn = Turn(
            link,
            self.store,
            self.chat,
            message,
            max_tokens=int(sampling.get("max_tokens", settings.max_tokens)),
            temperature=float(sampling.get("temperature", settings.temperature)),
            show=show,
        )
        self.running.append(turn)
        try:
            finished = await turn.run()
        finally:
            self.running.remove(turn)
        self.transcript.replace(finished)
        self.show_list()

    def action_leave(self) -> None:
        """Esc: stop what is running; with nothing running, leave the composer."""
        if self.running:
            for turn in self.running:
                turn.stop()
        else:
            self.leave_composer()
