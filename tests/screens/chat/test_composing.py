"""What a question is written with, by itself: attachments, what it will take of the context, and drafts."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from vlmconsole.chats.conversation import Conversation
from vlmconsole.chats.sampling import Question
from vlmconsole.chats.store import ChatStore
from vlmconsole.client.sight import Budget
from vlmconsole.lab import LabSettings
from vlmconsole.screens.chat import budget
from vlmconsole.screens.chat.attachments import Attachments
from vlmconsole.screens.chat.budget import Budgeter
from vlmconsole.screens.chat.drafts import Drafts


def saved(folder: Path, name: str = "scene.png") -> Path:
    Image.new("RGB", (96, 64), (30, 30, 200)).save(folder / name)
    return folder / name


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ChatStore]:
    store = ChatStore(tmp_path / "chats.sqlite", tmp_path / "pictures")
    yield store
    store.close()


@pytest.fixture
def conversation(store: ChatStore) -> Conversation:
    chat = store.new_chat()
    for number in range(4):
        store.add(chat.id, "user", f"question {number}")
        store.add(chat.id, "assistant", f"answer {number}")
    conversation = Conversation(lambda: store, LabSettings(max_tokens=10))
    conversation.open(store.chat(chat.id))
    return conversation


# -- attachments -------------------------------------------------------------------------------------------


async def test_a_bad_file_never_keeps_the_good_ones_out(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no picture")
    attachments = Attachments("white")
    errors = await attachments.open([saved(tmp_path), tmp_path / "broken.png", saved(tmp_path, "two.png")])
    assert [picture.name for picture in attachments.pictures] == ["scene.png", "two.png"]
    assert len(errors) == 1 and "broken.png" in errors[0]


async def test_what_is_taken_can_be_put_back_before_what_came_since(tmp_path: Path) -> None:
    attachments = Attachments("white")
    await attachments.open([saved(tmp_path, "one.png"), saved(tmp_path, "two.png")])
    taken = attachments.take()
    assert [picture.name for picture in taken] == ["one.png", "two.png"] and attachments.pictures == []
    await attachments.open([saved(tmp_path, "three.png")])
    attachments.put_back(taken)
    attachments.remove(1)
    attachments.remove(7)  # its chip was clicked twice
    assert [picture.name for picture in attachments.pictures] == ["one.png", "three.png"]


async def test_the_last_picture_shrinks_and_says_so(tmp_path: Path) -> None:
    attachments = Attachments("white")
    await attachments.open([saved(tmp_path, "one.png"), saved(tmp_path)])
    await attachments.shrink_last(48, 32)
    assert [picture.size for picture in attachments.pictures] == [(96, 64), (48, 32)]
    assert attachments.pictures[-1].changes


# -- budget ------------------------------------------------------------------------------------------------


class Link:
    """A server that counts ten tokens a message, for a context of `context` tokens."""

    def __init__(self, context: int | None, *, certain: bool = False) -> None:
        self.profile = SimpleNamespace(name="box")
        self.context, self.certain = context, certain

    async def budget(self, question: Question) -> Budget:
        text = 10 * len(question.messages)
        fits = self.context is None or text + question.max_tokens <= self.context
        advice = "" if fits else "too long: start a new conversation"
        return Budget(
            None, text, question.max_tokens, self.context, fits, True, advice, certain=self.certain, fits_alone=True
        )


class Hanging(Link):
    async def budget(self, question: Question) -> Budget:
        await asyncio.sleep(60)
        raise AssertionError


def budgeter(conversation: Conversation, link: Link | None) -> Budgeter:
    given: Any = link
    return Budgeter(conversation, lambda: given)


async def test_a_question_is_counted_with_all_that_is_sent_before_it(conversation: Conversation) -> None:
    counting = budgeter(conversation, Link(200))
    counting.cost = await counting.count("And now?", [])
    assert counting.summary() == "context 90 + 10 of 200" and counting.advice("And now?", pictures=False) == ""
    conversation.send_newest(1)
    counting.cost = await counting.count("And now?", [])
    assert counting.summary() == "context 30 + 10 of 200 · last 1 of 4 questions"


async def test_what_cannot_be_counted_stands_in_nobody_s_way(
    conversation: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "BUDGET_WAIT", 0.01)
    for link in (None, Hanging(200)):
        counting = budgeter(conversation, link)
        cost = await counting.count("And now?", [])
        assert cost is None and not counting.refuses("And now?", cost) and counting.summary() == ""


async def test_a_question_that_may_be_too_long_is_refused_once(conversation: Conversation) -> None:
    counting = budgeter(conversation, Link(50))
    cost = await counting.count("And now?", [])
    assert counting.refuses("And now?", cost)
    assert "Enter" in counting.advice("And now?", pictures=False) and "Ctrl+R" in counting.advice("", pictures=False)
    assert not counting.refuses("And now?", cost), "Enter again sends it"
    counting.sent()
    assert counting.refuses("And now?", cost)


async def test_a_question_that_is_certainly_too_long_is_refused_each_time(conversation: Conversation) -> None:
    counting = budgeter(conversation, Link(50, certain=True))
    cost = await counting.count("And now?", [])
    assert counting.refuses("And now?", cost) and counting.refuses("And now?", cost)


@pytest.mark.parametrize(
    ("context", "text", "fit"),
    [
        (None, "", None),  # nobody knows
        (1000, "", 4),
        (80, "", 2),  # 10 + 10 and 20 a question, with a quarter left free
        (40, "", 0),
        (40, "And now?", 1),  # what is written goes first, without room for another
    ],
)
async def test_as_many_questions_as_fit(conversation: Conversation, context: int | None, text: str, fit: int) -> None:
    assert await budgeter(conversation, Link(context)).most_that_fit(text, []) == fit


# -- drafts ------------------------------------------------------------------------------------------------


async def test_a_draft_of_a_console_that_is_gone_is_taken_up_once(
    conversation: Conversation, store: ChatStore, tmp_path: Path
) -> None:
    attachments = Attachments("white")
    await attachments.open([saved(tmp_path)])
    conversation.changing = 3
    Drafts(conversation).store("half a ques", attachments.pictures)
    assert Drafts(conversation).lost() is None, "its console lives"
    with sqlite3.connect(store.database) as database:
        database.execute("UPDATE drafts SET writer_pid = 1 << 22, writer_started = 'gone'")
    drafts = Drafts(conversation)
    draft = drafts.lost()
    assert draft is not None and conversation.chat is not None
    assert (draft.text, draft.chat_id, draft.changing) == ("half a ques", conversation.chat.id, 3)
    assert [picture.load().size for picture in draft.pictures] == [(96, 64)]
    assert drafts.lost() is None


def test_a_draft_is_written_only_when_it_has_moved(conversation: Conversation, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Sequence[Any]] = []
    monkeypatch.setattr(conversation.store, "keep_draft", lambda *draft: written.append(draft))
    drafts = Drafts(conversation)
    for text in ("", "", "a", "a", "ab", ""):
        drafts.store(text, [])
    assert [draft[0] for draft in written] == ["", "a", "ab", ""]


def test_what_was_being_written_comes_back_once(conversation: Conversation) -> None:
    drafts = Drafts(conversation)
    drafts.put_aside("first thoughts", [])
    assert drafts.take_aside() == ("first thoughts", [])
    assert drafts.take_aside() == ("", [])
