"""The same question to a second server, and two answers side by side."""

from __future__ import annotations

from vlmconsole.chats.records import StoredMessage
from vlmconsole.screens.chat.ask import ChatAsk


class ChatBoth(ChatAsk):
    """Both answers stay in the conversation; `history.turns` says which of them goes on."""

    def action_both(self) -> None:
        """b: have the last question answered by a second server as well, and show both as they come."""
        from vlmconsole.screens.widgets.dialogs import Choose

        asked = self._answered(len(self.transcript.messages) - 1)
        if self.chat is None or asked is None:
            return
        question, first = asked[0], asked[1][0] if asked[1] else None
        own = first.server if first is not None else ""
        others = [(p.name, p.name, p.title) for p in self.console.profiles().values() if p.name != own]

        async def chosen(name: str | None) -> None:
            if name is None:
                return
            second = await self.answer(self.console.link_to(name))
            if first is not None:
                self._side_by_side(question, first, second)

        self.app.push_screen(Choose("Ask the last question to", others), chosen)

    def action_pair(self) -> None:
        """v: the chosen answer beside another server's to the same question."""
        asked = self._answered(self.transcript.chosen)
        if asked is None or len(asked[1]) < 2:
            self.notify("only one server answered this question; b asks a second one", markup=False)
            return
        question, answers = asked
        chosen = self.chosen_answer() or answers[-1]
        other = next(answer for answer in reversed(answers) if answer.id != chosen.id)
        first, second = sorted((chosen, other), key=lambda answer: answer.id)
        self._side_by_side(question, first, second)

    def _side_by_side(self, question: StoredMessage, first: StoredMessage, second: StoredMessage) -> None:
        from vlmconsole.screens.chat.pair import Live, PairScreen

        def read(message_id: int) -> Live:
            turn = next((turn for turn in self.running if turn.message.id == message_id), None)
            if turn is not None:
                return Live(turn.message, turn.text, turn.ttft_s)
            message = next(item for item in self.transcript.messages if item.id == message_id)
            return Live(message, message.text)

        self.app.push_screen(PairScreen(question.text, (first.id, second.id), read))

    def _answered(self, at: int) -> tuple[StoredMessage, list[StoredMessage]] | None:
        """The question at or before place `at`, and all answers to it."""
        messages = self.transcript.messages
        begin = next((index for index in range(at, -1, -1) if messages[index].role == "user"), None)
        if begin is None:
            return None
        answers: list[StoredMessage] = []
        for message in messages[begin + 1 :]:
            if message.role != "assistant":
                break
            answers.append(message)
        return messages[begin], answers
