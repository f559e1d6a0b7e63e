"""One message of the transcript: who and when, its pictures with their proof, its words, and how it ended."""

from __future__ import annotations

import time
from typing import Any

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from vlmconsole.chats.checked import DAMAGED
from vlmconsole.chats.records import StoredMessage, StoredPicture
from vlmconsole.screens.chat.why import sight_lines, summary
from vlmconsole.screens.keys import with_keys
from vlmconsole.screens.pictures.choose import picture_view
from vlmconsole.screens.prose.prose import Prose
from vlmconsole.screens.terminal.terminal import Drawing
from vlmconsole.streams.ending import read_remarks
from vlmconsole.text.plain import inert, one_line
from vlmconsole.text.times import latency

#: How an answer that did not end well is marked: a sign, what happened. The text before it is always kept.
ENDINGS = {
    "cut": "✂ connection lost mid-answer",
    "stopped": "■ stopped",
    "interrupted": "✂ interrupted: the console ended mid-answer",
    "failed": "✗ failed",
}
LIMITED = "✂ closed by the console"
REPORTED = "✗ the server reported an error mid-answer"
#: What to do about a remark on an answer, by its code; `{…}` is an act's key.
WAYS = {
    "limit": " · {chat.sampling} raises it · {chat.again} asks again",
    "context": " · {chat.new} starts a new conversation",
    "empty": " · {chat.again} asks again",
    "reasoning": " · {chat.again} asks again",
    "refused": " · {chat.again} asks again",
    "called": " · {chat.again} asks again",
    "lost": " · {chat.again} asks again",
}
SIGNS = {"limit": "✂", "context": "✂", "empty": "✗", "reasoning": "✗", "refused": "✗", "called": "✗", "lost": "✗"}

#: Characters of reasoning shown while it comes, and once the answer has ended: laying out more stops the screen.
THOUGHT, THOUGHTS = 600, 20_000


def clock(at: float) -> str:
    """Local time of day; with the day when that is not today."""
    moment = time.localtime(at)
    same_day = moment[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if same_day else "%d %b %H:%M", moment)


FIRST_TOKEN = "the first token"  # what an answer waits for
REASONING = "reasoning"  # instead: what it does meanwhile


def foot(message: StoredMessage, *, begun: bool, ttft_s: float | None = None, waits: str = FIRST_TOKEN) -> Content:
    """Return how far a message is, or how it ended, and its most wanted numbers."""
    damaged = [Content(f"✗ {DAMAGED}").stylize("$warning")] if message.damaged else []
    if message.role == "user":
        return Content("\n").join(damaged)
    if message.state == "streaming":
        what = waits if waits.startswith("after ") else f"for {waits}"
        waiting = f"● {REASONING}" if waits == REASONING else f"● waiting {what}"
        state = "● answering" if begun or message.text else waiting
        if ttft_s is not None:
            state += f" · TTFT {latency(ttft_s)}"
        return Content(state).stylize("$accent")
    lines: list[Content] = []
    if message.state in ENDINGS:
        lines.append(Content(_ending(message)).stylize("$error" if message.state == "failed" else "$warning"))
    for remark in read_remarks(message.answer) if message.answer else ():
        if remark.code != "whole":  # the figures say that
            words = f"{SIGNS.get(remark.code, '!')} {one_line(remark.text, 400)}{with_keys(WAYS.get(remark.code, ''))}"
            lines.append(Content(words).stylize("$warning"))
    lines += damaged
    if message.answer and (figures := summary(message.answer)):
        lines.append(Content(figures).stylize("$faint"))
    return Content("\n").join(lines)


def _ending(message: StoredMessage) -> str:
    ending, begun = ENDINGS[message.state], bool(message.text or message.reasoning)
    answer = message.answer or {}
    if message.state == "cut" and answer.get("ended") == "error":
        ending = LIMITED if answer.get("closed_by_us") else REPORTED
    if message.state == "stopped" and not begun:
        ending = "■ stopped before the first token"
    elif message.state != "failed":
        ending = (
            f"{ending}; partial answer kept"
            if begun
            else f"{ending.removesuffix(' mid-answer')} before the first token"
        )
    return ending + (f": {one_line(message.error, 400)}" if message.error else "")


class MessageView(Vertical):
    """A stored message on the screen. `update_message` shows its next state; `grow` follows a running stream."""

    class Chosen(Message):
        def __init__(self, view: MessageView) -> None:
            super().__init__()
            self.view = view

    def __init__(
        self,
        message: StoredMessage,
        *,
        drawing: Drawing,
        picture_cells: tuple[int, int],
        proofs: list[dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(classes=f"message {message.role}")
        self.message = message
        self._drawing = drawing
        self._cells = picture_cells
        self._proofs = proofs or []
        self._begun = False
        self._thought = 0
        self._ttft_s: float | None = None
        self._waits = FIRST_TOKEN
        self.prose = Prose(message.text, markdown=message.role == "assistant")

    def compose(self) -> ComposeResult:
        yield Static(self._head(), classes="head")
        for picture in self.message.pictures:
            with Horizontal(classes="picture"):
                if self._drawing != "off":
                    yield picture_view(picture, *self._cells, self._drawing)
                yield Static(self._facts(picture), classes="facts")
        yield Static(classes="reasoning")
        yield self.prose
        yield Static(self._foot(), classes="foot")

    def on_mount(self) -> None:
        self._think(self.message.reasoning)
        self._mark()

    def on_click(self) -> None:
        self.post_message(self.Chosen(self))

    def grow(self, text: str, ttft_s: float | None = None, reasoning: str = "") -> None:
        """Show the text so far of a running answer; with its first piece the foot stops saying that it waits."""
        if len(reasoning) != self._thought:
            # Its end only: long thoughts laid out anew with every piece would take the screen's whole time.
            self._think(reasoning if len(reasoning) <= THOUGHT else "…" + reasoning[-THOUGHT:])
            if not self._thought and not text:
                self.wait_for(REASONING)
            self._thought = len(reasoning)
        self.prose.grow(text)
        if text and not self._begun:
            self._begun, self._ttft_s = True, ttft_s
            self.query_one(".foot", Static).update(self._foot())

    def wait_for(self, what: str) -> None:
        """Say what the answer waits for, until its first piece comes."""
        if what != self._waits:
            self._waits = what
            self.query_one(".foot", Static).update(self._foot())

    def update_message(self, message: StoredMessage) -> None:
        """Show how the message ended; its text is parsed once more as a whole."""
        self.message = message
        self._think(message.reasoning)
        self.prose.settle(message.text)
        self.query_one(".head", Static).update(self._head())
        self.query_one(".foot", Static).update(self._foot())
        self._mark()

    def show_proofs(self, proofs: list[dict[str, Any]]) -> None:
        """The proof of sight came with the answer: put it beside the pictures it speaks about."""
        self._proofs = proofs
        for facts, picture in zip(self.query(".facts"), self.message.pictures, strict=False):
            if isinstance(facts, Static):
                facts.update(self._facts(picture))

    def _think(self, reasoning: str) -> None:
        view = self.query_one(".reasoning", Static)
        view.display = bool(reasoning)
        if reasoning:
            rest = len(reasoning) - THOUGHTS
            more = f"\n… {rest:,} more characters (Enter shows all)" if rest > 0 else ""
            view.update(Content(inert(reasoning[:THOUGHTS]) + more))

    def _mark(self) -> None:
        state = self.message.state
        self.set_class(state in ("cut", "stopped", "interrupted"), "-partial")
        self.set_class(state == "failed", "-failed")
        self.set_class(state == "streaming", "-streaming")
        self.query_one(".foot", Static).display = bool(self._foot())

    def _head(self) -> Content:
        who = "you" if self.message.role == "user" else one_line(self.message.server or "model", 40)
        style = "bold $muted" if self.message.role == "user" else "bold $accent"
        return Content.assemble((who, style), ("  " + clock(self.message.created), "$faint"))

    def _foot(self) -> Content:
        return foot(self.message, begun=self._begun, ttft_s=self._ttft_s, waits=self._waits)

    def _facts(self, picture: StoredPicture) -> Content:
        width, height = picture.size
        lines = [
            Content(one_line(picture.name, 60)).stylize("bold"),
            Content(f"{width}×{height}, {picture.description}").stylize("$muted"),
        ]
        if picture.note:
            lines.append(Content(one_line(picture.note)).stylize("$muted"))
        proof = next((item for item in self._proofs if item.get("sha256") == picture.sha256), None)
        if proof is None:
            lines.append(Content(f"sha {picture.sha256[:4]}…").stylize("$faint"))
        else:
            label, style = sight_lines(proof)
            lines.append(Content(label[0]).stylize(style))
            lines.extend(Content(one_line(line)).stylize("$muted") for line in label[1:] if line)
        return Content("\n").join(lines)
