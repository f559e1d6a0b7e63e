"""Which of a conversation's messages go to the server with the next question, and how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vlmconsole.chats.records import StoredMessage, StoredPicture

if TYPE_CHECKING:
    from vlmconsole.models.messages import Message
    from vlmconsole.vision.images import Picture


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
        answered = [answer for answer in answers if answer.text.strip()]
        if answered:
            own = next((answer for answer in answered if answer.server == server), answered[0])
            kept += [question, own]
        elif index == len(messages):
            kept.append(question)
    return kept


def request_messages(
    system: str, records: Sequence[StoredMessage], picture: Callable[[StoredPicture], Picture] = StoredPicture.outline
) -> list[Message]:
    """`records` as they are sent, after the system prompt (where there is one).

    `picture`: `StoredPicture.outline` for counting and for records, `StoredPicture.load` for sending.
    """
    # Imported here: what a request looks like brings the image library, which the first frame does not wait for.
    from vlmconsole.models.messages import Message

    messages = [Message("system", system)] if system.strip() else []
    for record in records:
        places = tuple(item.place for item in record.pictures)
        pictures = tuple(picture(item) for item in record.pictures)
        messages.append(Message(record.role, record.text, pictures, places if any(places) else ()))
    return messages
