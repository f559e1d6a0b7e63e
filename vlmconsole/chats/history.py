"""Which of a conversation's messages go to the server with the next question."""

from __future__ import annotations

from collections.abc import Sequence

from vlmconsole.chats.records import StoredMessage


def turns(messages: Sequence[StoredMessage], server: str = "", since: int = 0) -> list[StoredMessage]:
    """Messages in order as question, answer, question, …; what gave nothing is left out.

    A question without any answer text is dropped unless it is the last message (it is being asked now). Where several
    servers answered one question, `server`'s own answer is taken, else the first. Partial answers count: the person
    saw them. `since`: the id of the first message that goes at all.
    """
    messages = [message for message in messages if message.id >= since]
    kept: list[StoredMessage] = []
    index = 0
    while index < len(messages):
        question = messages[index]
        index += 1
        if question.role != "user":
            continue
        answers: list[StoredMessage] = []
        while index < len(messages) and messages[index].role == "assistant":
            answers.append(messages[index])
            index += 1
        said = [answer for answer in answers if answer.text.strip()]
        if said:
            own = next((answer for answer in said if answer.server == server), said[0])
            kept += [question, own]
        elif index == len(messages):
            kept.append(question)
    return kept
