"""The Why panel: everything known about the chosen answer, and the server's settings as it reads them back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.visual import Visual
from textual.widgets import Static

from vlmconsole.chats.checked import DAMAGED
from vlmconsole.chats.records import StoredMessage
from vlmconsole.screens.chat.columns import PanelHeading, PanelRow, RowsVisual
from vlmconsole.screens.chat.why import adapter_rows, client_rows, setting_rows, timing_rows, token_rows
from vlmconsole.text.times import latency

_STATES = {"done": "done", "cut": "cut off", "stopped": "stopped", "interrupted": "interrupted", "failed": "failed"}


class WhyPanel(VerticalScroll):
    """Shows one answer; without one it says what will stand here."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._settings: Mapping[str, Any] = {}
        self._server = ""
        self._asked: Sequence[PanelRow] = ()
        self._answer: StoredMessage | None = None
        self._place = (0, 0)
        self._ttft_s: float | None = None
        self._heights: dict[str, int] = {}

    def compose(self) -> ComposeResult:
        yield Static(id="why-title")
        yield Static(id="why-rows")

    def on_mount(self) -> None:
        self._draw()

    def show(
        self,
        answer: StoredMessage | None,
        number: int,
        total: int,
        *,
        ttft_s: float | None = None,
        asked: Sequence[PanelRow] = (),
    ) -> None:
        """`answer` is the `number`-th of `total` answers; `ttft_s` is known of one whose text has begun to come.

        `asked` says how it was asked, where that is not as usual; without an answer, how the next question will be.
        """
        self._asked = asked
        self._answer, self._place, self._ttft_s = answer, (number, total), ttft_s
        self._draw()

    def show_settings(self, settings: Mapping[str, Any], server: str) -> None:
        """What the server in use (`server`: its profile's name) reads back, for answers of its own without any."""
        self._settings, self._server = settings, server
        self._draw()

    def _draw(self) -> None:
        if not self.is_mounted:
            return
        answer = self._answer
        title = Content("Why").stylize("bold")
        rows: list[PanelRow | PanelHeading] = []
        if answer is None:
            title = Content.assemble(title, ("\nTiming and settings for the selected answer.", "$faint"))
        else:
            number, total = self._place
            title = Content.assemble(title, (f"  answer {number} of {total}", "$muted"))
            if answer.state == "streaming":
                begun = self._ttft_s is not None or bool(answer.text)
                rows = [PanelRow("state", "answering" if begun else "waiting for the first token", "$accent")]
                if self._ttft_s is not None:
                    rows.append(PanelRow("TTFT", latency(self._ttft_s), "bold"))
            elif answer.answer is None:
                rows = [
                    PanelRow("state", _STATES.get(answer.state, answer.state), "$warning"),
                    PanelRow("timing", "none stored", "$muted"),
                ]
            else:
                facts = answer.answer
                rows = [*adapter_rows(facts), *timing_rows(facts), *token_rows(facts), *client_rows(facts)]
                if answer.state != "done":
                    rows.insert(0, PanelRow("state", _STATES.get(answer.state, answer.state), "$warning"))
            if answer.damaged:
                rows.insert(0, PanelRow("numbers", DAMAGED, "$warning"))
        rows += self._asked
        kept = (answer.answer or {}).get("settings") if answer is not None else None
        own = answer is None or answer.server in ("", self._server)
        rows += setting_rows(kept or (self._settings if own else {}))
        self._put("#why-title", title, title.plain.count("\n"))
        table = self.query_one("#why-rows", Static)
        self._put("#why-rows", RowsVisual(rows), len(RowsVisual(rows).lines(table.content_size.width or 30)))

    def _put(self, name: str, visual: Visual, height: int) -> None:
        """Laying out the screen anew is worth it only when the height moved."""
        self.query_one(name, Static).update(visual, layout=self._heights.get(name) != height)
        self._heights[name] = height
