"""One picture of a training over the whole screen, with every answer to it in full."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from vlmconsole.errors import LabError
from vlmconsole.screens.jobs.training_answers import Piece, Shown, find_picture, mark
from vlmconsole.screens.pictures.choose import picture_view
from vlmconsole.screens.terminal.terminal import Drawing
from vlmconsole.screens.theme import DIALOGS
from vlmconsole.screens.widgets.dialogs import CANCEL
from vlmconsole.text.numbers import figure, signed
from vlmconsole.text.plain import inert, one_line


class AnswerSheet(ModalScreen[None]):
    """Esc, q, Enter and z go back."""

    CSS_PATH = DIALOGS
    BINDINGS: ClassVar[list[BindingType]] = [CANCEL, Binding("q,enter,z", "cancel", "back", show=False)]

    def __init__(self, shown: Shown, folder: Path, drawing: Drawing) -> None:
        super().__init__(classes="reader")
        self._shown, self._folder, self._drawing = shown, folder, drawing
        self._frame = Vertical(id="answer-picture")

    def compose(self) -> ComposeResult:
        first = self._shown.answers[0]
        at = f"step {first.step:g}" + (f", epoch {first.epoch:g}" if first.epoch is not None else "")
        label = f" · {one_line(first.label, 80)}" if first.label else ""
        with Vertical(classes="sheet answer"):
            yield Static(Content.assemble((one_line(first.uid, 80), "bold"), (f"   {at}{label}", "$muted")))
            with Horizontal():
                yield self._frame
                with VerticalScroll():
                    yield Static(answers_text(self._shown))
            yield Static(Content(f"{one_line(self._shown.picture, 80)} · Esc back").stylize("$faint"))

    async def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        self.call_after_refresh(self._draw)

    async def _draw(self) -> None:
        if self._drawing == "off" or not self._shown.picture:
            self._frame.display = False
            return
        size = self._frame.size
        try:
            picture = await asyncio.to_thread(find_picture, self._folder / self._shown.picture)
        except (OSError, ValueError, LabError) as error:
            await self._frame.mount(Static(Content(inert(str(error))).stylize("$warning")))
        else:
            await self._frame.mount(picture_view(picture, size.width, size.height, self._drawing))

    def action_cancel(self) -> None:
        self.dismiss(None)


def answers_text(shown: Shown) -> Content:
    """Truth, each answer with mark, reward, its parts and advantage, and how it went with the picture before."""
    first = shown.answers[0]
    pieces: list[Piece] = [("truth\n", "$faint"), inert(first.truth), "\n"]
    for number, answer in enumerate(shown.answers, 1):
        name = f"answer {number}" if len(shown.answers) > 1 else "answer"
        pieces += [(f"\n{name}\n", "$faint"), mark(answer.right), " ", inert(answer.answer) or ("(empty)", "$muted")]
        pieces.append((f"\nreward {figure(answer.reward)}", "$muted"))
        parts = " + ".join(f"{inert(name)} {figure(part)}" for name, part in answer.parts)
        pieces.append((f" = {parts}" if len(answer.parts) > 1 else "", "$muted"))
        pieces += [
            (f" · advantage {signed(answer.advantage, 2)}", "$muted") if answer.advantage is not None else "",
            "\n",
        ]
    if shown.pointless:
        pieces.append(("\nall answers scored the same: no learning signal from this group\n", "$warning"))
    if first.trail:
        pieces += [("\nearlier, oldest first\n", "$faint"), *(mark(right) for right in first.trail)]
    return Content.assemble(*pieces)
