"""Two servers' answers to one question, side by side: each with its own numbers, and what stands between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from vlmconsole.chats.records import StoredMessage
from vlmconsole.screens.chat.columns import PanelHeading, PanelRow, RowsVisual
from vlmconsole.screens.chat.message import foot
from vlmconsole.screens.chat.why import adapter_rows, client_rows, setting_rows, timing_rows, token_rows
from vlmconsole.screens.keys import with_keys
from vlmconsole.screens.prose.prose import Prose
from vlmconsole.screens.theme import DIALOGS
from vlmconsole.text.plain import one_line
from vlmconsole.text.times import latency

if TYPE_CHECKING:
    from vlmconsole.screens.chat.screen import ChatScreen

#: A running answer is looked at this often (seconds).
LOOK = 0.1


@dataclass(frozen=True)
class LiveAnswer:
    """An answer as far as it has come. `ttft_s` counts only while `message` is still streaming."""

    message: StoredMessage
    text: str
    ttft_s: float | None = None

    @property
    def running(self) -> bool:
        return self.message.state == "streaming"


def between(left: StoredMessage, right: StoredMessage) -> tuple[str, str]:
    """Return one sentence on whether the two answers' figures may be compared, and its style. Both have ended."""
    from vlmconsole.compare.runs import compare
    from vlmconsole.runs.conditions import Conditions

    for message in (left, right):
        if not (message.answer or {}).get("conditions"):
            return f"Not comparable: {one_line(message.server, 40)} has no timing.", "$warning"
    first, second = (Conditions.model_validate((message.answer or {})["conditions"]) for message in (left, right))
    comparison = compare(first, second)
    if len(comparison.differs) == 1:
        comparison = compare(first, second, only=comparison.differs[0].key)
    sentence = one_line(comparison.sentence(), 600)
    if comparison.unknown:
        sentence += f" Unknown for both: {', '.join(comparison.unknown)}."
    return f"{sentence} One answer each is not a benchmark.", "$muted" if comparison.comparable else "$warning"


class AnswerSide(VerticalScroll):
    """One server's answer: who, how it ended, the words, and the numbers with their conditions."""

    def __init__(self, live: LiveAnswer) -> None:
        super().__init__(classes="side")
        self._live = live
        self._prose = Prose(live.text)

    def compose(self) -> ComposeResult:
        model = str(((self._live.message.answer or {}).get("conditions") or {}).get("model") or "")
        head = Content(one_line(self._live.message.server or "model", 40)).stylize("bold $accent")
        yield Static(Content.assemble(head, (f"  {one_line(model, 60)}" if model else "", "$faint")), classes="head")
        yield Static(classes="foot")
        yield self._prose
        yield Static(classes="rows")

    def on_mount(self) -> None:
        self._numbers()

    def follow(self, live: LiveAnswer) -> None:
        """The next state of the answer; nothing is drawn anew that has not moved."""
        if live == self._live:
            return
        self._live = live
        if live.running:
            self._prose.grow(live.text)
        else:
            self._prose.settle(live.text)
        self._numbers()

    def _numbers(self) -> None:
        live, answer = self._live, self._live.message.answer
        rows: list[PanelRow | PanelHeading] = []
        if live.running and live.ttft_s is not None:
            rows = [PanelRow("TTFT", latency(live.ttft_s), "bold")]
        elif answer is not None:
            rows = [*adapter_rows(answer), *timing_rows(answer), *token_rows(answer), *client_rows(answer)]
            rows += setting_rows(answer.get("settings") or {})
        self.query_one(".foot", Static).update(foot(live.message, begun=bool(live.text), ttft_s=live.ttft_s))
        self.query_one(".rows", Static).update(RowsVisual(rows))


class PairScreen(ModalScreen[None]):
    """Columns on a wide terminal, one below the other on a narrow one. `read` gives an answer's present state."""

    CSS_PATH = DIALOGS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "back", key_display="Esc"),
        Binding("q,enter,v", "dismiss", "back", show=False),
        Binding("j,down", "scroll(2)", "down", show=False),
        Binding("k,up", "scroll(-2)", "up", show=False),
        Binding("pagedown", "scroll(16)", "page down", show=False),
        Binding("pageup", "scroll(-16)", "page up", show=False),
        Binding("tab,right_square_bracket,left_square_bracket", "other", "the other answer", show=False),
    ]

    def __init__(self, question: str, ids: tuple[int, int], read: Callable[[int], LiveAnswer]) -> None:
        super().__init__(classes="pair")
        self._question, self._ids, self._read = question, ids, read
        self._ended = False

    def compose(self) -> ComposeResult:
        title = Content(one_line(self._question, 52)).stylize("bold")
        yield Static(Content.assemble(title, ("   Esc back · Tab other", "$faint")), classes="title")
        yield Static(classes="between")
        with Horizontal(classes="sides"):
            for message_id in self._ids:
                yield AnswerSide(self._read(message_id))

    def on_mount(self) -> None:
        self.query(AnswerSide).first().focus()
        self.set_interval(LOOK, self._look)
        self._look()

    def _look(self) -> None:
        if self._ended:
            return
        lives = [self._read(message_id) for message_id in self._ids]
        for side, live in zip(self.query(AnswerSide), lives, strict=True):
            side.follow(live)
        self._ended = not any(live.running for live in lives)
        label, style = "Comparability is checked when both have finished.", "$faint"
        if self._ended:
            label, style = between(lives[0].message, lives[1].message)
        self.query_one(".between", Static).update(Content(label).stylize(style))

    def action_scroll(self, by: int) -> None:
        if isinstance(self.focused, AnswerSide):
            self.focused.scroll_relative(y=by, animate=False)

    def action_other(self) -> None:
        sides = list(self.query(AnswerSide))
        sides[1 if self.focused is sides[0] else 0].focus()


def ask_second_server(screen: ChatScreen) -> None:
    """Have the last question answered by a second server as well, and show both as they come.

    Both answers stay in the conversation; `history.turns` says which of them goes on.
    """
    from vlmconsole.screens.widgets.dialogs import Choose

    conversation = screen.conversation
    asked = conversation.answered(len(conversation.messages) - 1)
    if conversation.chat is None or asked is None:
        return
    question, first = asked[0], asked[1][0] if asked[1] else None
    own = first.server if first is not None else ""
    others = [(p.name, p.name, p.title) for p in screen.console.profiles().values() if p.name != own]

    async def chosen(name: str | None) -> None:
        if name is None:
            return
        second = await screen.asker.answer(screen.console.link_to(name))
        if first is not None:
            _show(screen, question, first, second)

    screen.app.push_screen(Choose("Ask another server", others), chosen)


def show_pair(screen: ChatScreen) -> None:
    """The chosen answer beside another server's to the same question."""
    asked = screen.conversation.answered(screen.transcript.chosen)
    if asked is None or len(asked[1]) < 2:
        screen.notify(
            with_keys("only one server has answered this question · {chat.compare} asks another"), markup=False
        )
        return
    question, answers = asked
    chosen = screen.transcript.chosen_answer or answers[-1]
    other = next(answer for answer in reversed(answers) if answer.id != chosen.id)
    first, second = sorted((chosen, other), key=lambda answer: answer.id)
    _show(screen, question, first, second)


def _show(screen: ChatScreen, question: StoredMessage, first: StoredMessage, second: StoredMessage) -> None:
    def read(message_id: int) -> LiveAnswer:
        turn = screen.asker.running_turn(message_id)
        if turn is not None:
            return LiveAnswer(turn.message, turn.text, turn.ttft_s)
        message = next(item for item in screen.conversation.messages if item.id == message_id)
        return LiveAnswer(message, message.text)

    screen.app.push_screen(PairScreen(question.text, (first.id, second.id), read))
