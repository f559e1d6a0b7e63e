"""The open conversation by itself: its messages, its settings, and what of it is sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from examples import several
from PIL import Image

from vlmconsole.chats.conversation import NEWEST, Conversation
from vlmconsole.chats.history import request_messages, turns
from vlmconsole.chats.records import ChatStoreError, StoredPicture
from vlmconsole.chats.sampling import Question, Sampling, checked_sampling
from vlmconsole.chats.store import ChatStore
from vlmconsole.data.example import Example
from vlmconsole.lab import LabSettings
from vlmconsole.models.messages import to_request
from vlmconsole.vision.images import Picture, open_picture

USUAL = LabSettings(temperature=0.5, max_tokens=100)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ChatStore]:
    store = ChatStore(tmp_path / "chats.sqlite", tmp_path / "pictures")
    yield store
    store.close()


@pytest.fixture
def conversation(store: ChatStore) -> Conversation:
    conversation = Conversation(lambda: store, USUAL)
    conversation.open(None)
    return conversation


def picture(folder: Path) -> Picture:
    Image.new("RGB", (64, 64), (200, 30, 30)).save(folder / "red.png")
    return open_picture(folder / "red.png")


def exchange(conversation: Conversation, question: str, answer: str, server: str = "box") -> None:
    """A question and its answer, as the store has them once the answer has ended."""
    conversation.add_question(question, [], server)
    empty = conversation.add_answer(server)
    conversation.replace(conversation.store.finish(empty.id, text=answer, state="done"))


def texts(question: Question) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in question.messages]


@pytest.mark.parametrize("example", several("chat", 5), ids=lambda example: example.id)
def test_a_conversation_begun_from_an_example_asks_what_the_example_asks(
    conversation: Conversation, store: ChatStore, example: Example
) -> None:
    question = conversation.begin(example.messages(), "box", example.id)
    assert question == conversation.messages[-1] and question.role == "user"
    assert conversation.chat is not None and conversation.chat.title == example.id
    assert (conversation.system or None) == example.system
    again = Conversation(lambda: store, USUAL)
    again.open(store.chat(conversation.chat.id))
    sent = request_messages(again.system, turns(again.messages, "box"), StoredPicture.load)
    assert to_request(sent) == to_request(example.messages())


def test_the_store_is_opened_when_it_is_first_needed(store: ChatStore) -> None:
    opened: list[ChatStore] = []
    conversation = Conversation(lambda: opened.append(store) or store, USUAL)
    assert conversation.sampling == Sampling() and conversation.asked()["temperature"] == 0.5 and not opened
    conversation.open(None)
    assert conversation.messages == [] and not opened
    conversation.add_question("Hello", [], "box")
    assert opened == [store]


def test_the_first_question_begins_the_conversation_with_what_was_set_before(conversation: Conversation) -> None:
    conversation.set(system="Be short.", sampling=Sampling(temperature=0.0, seed=0))
    conversation.add_question("How many?", [], "box")
    chat = conversation.chat
    assert chat is not None and (chat.title, chat.server, chat.system) == ("How many?", "box", "Be short.")
    assert chat.sampling == {"temperature": 0.0, "seed": 0} and conversation.sampling.seed == 0
    conversation.open(None)
    assert (conversation.system, conversation.sampling) == ("", Sampling()), "the next one begins anew"


def test_settings_hold_over_the_usual_ones_and_unknown_ones_stay(conversation: Conversation, store: ChatStore) -> None:
    chat = store.new_chat()
    store.set_chat(chat.id, sampling={"max_tokens": 7, "later_version": 1})
    conversation.open(store.chat(chat.id))
    question = conversation.question("?", [], "box")
    assert (question.temperature, question.max_tokens, question.chosen, question.extra) == (0.5, 7, True, {})
    conversation.set(sampling=Sampling(top_p=0.9, adapter="taught", other_base=True))
    question = conversation.question("?", [], "box")
    assert (question.max_tokens, question.chosen, question.extra) == (100, False, {"top_p": 0.9})
    assert (question.adapter, question.other_base) == ("taught", True)
    assert store.chat(chat.id).sampling == {
        "later_version": 1,
        "top_p": 0.9,
        "adapter": "taught",
        "other_base": True,
    }


def test_a_question_goes_with_the_system_prompt_and_all_that_was_answered(
    conversation: Conversation, tmp_path: Path
) -> None:
    conversation.set(system="Be short.")
    conversation.add_question("What is it?", [picture(tmp_path)], "one")
    for server, text in (("one", "A square."), ("two", "A box.")):
        empty = conversation.add_answer(server)
        conversation.replace(conversation.store.finish(empty.id, text=text, state="done"))
    question = conversation.question("Its colour?", [], "two")
    assert texts(question) == [
        ("system", "Be short."),
        ("user", "What is it?"),
        ("assistant", "A box."),
        ("user", "Its colour?"),
    ]
    (outline,) = question.messages[1].pictures
    assert outline.size == (64, 64) and outline.data == b"", "enough to count, not to send"


def test_only_the_newest_questions_are_sent_where_that_is_chosen(conversation: Conversation) -> None:
    for number in range(3):
        exchange(conversation, f"Q{number}", f"A{number}")
    conversation.send_newest(1)
    assert texts(conversation.question("?", [], "box")) == [("user", "Q2"), ("assistant", "A2"), ("user", "?")]
    conversation.send_newest(0)
    assert texts(conversation.question("?", [], "box")) == [("user", "?")]
    first = conversation.questions()[1].id
    assert len(conversation.question("?", [], "box", since=first).messages) == 5, "as if it were set"
    conversation.send_newest(3)
    assert conversation.sampling.since == 0


def test_a_changed_question_replaces_it_and_what_followed(conversation: Conversation, store: ChatStore) -> None:
    exchange(conversation, "Q0", "A0")
    exchange(conversation, "Q1", "A1")
    conversation.changing = conversation.messages[2].id
    assert [message.text for message in conversation.before()] == ["Q0", "A0"]
    conversation.add_question("Q1, better", [], "box")
    assert [message.text for message in conversation.messages] == ["Q0", "A0", "Q1, better"]
    assert conversation.changing is None and conversation.chat is not None
    assert len(store.messages(conversation.chat.id, superseded=True)) == 5


def test_an_answer_may_replace_another(conversation: Conversation) -> None:
    exchange(conversation, "Q", "wrong")
    old = conversation.answers()[0]
    new = conversation.add_answer("box", instead=old.id)
    assert [message.id for message in conversation.answers()] == [new.id]


def test_the_question_and_the_answers_around_a_message(conversation: Conversation) -> None:
    exchange(conversation, "Q0", "A0")
    conversation.add_question("Q1", [], "one")
    for server in ("one", "two"):
        conversation.add_answer(server)
    by_place = [(conversation.question_at(at), conversation.answer_at(at)) for at in range(5)]
    assert [(asked.text, answer.id) for asked, answer in by_place if asked and answer] == [
        ("Q0", 2),
        ("Q0", 2),
        ("Q1", 4),
        ("Q1", 4),
        ("Q1", 5),
    ]
    answered = conversation.answered(4)
    assert answered is not None and [answer.server for answer in answered[1]] == ["one", "two"]
    assert conversation.answered(-1) is None and conversation.answer_at(-1) is None


def test_a_question_that_was_never_sent_comes_back_unless_somebody_else_has_it(
    conversation: Conversation, store: ChatStore
) -> None:
    asked = conversation.add_question("Q", [], "box")
    answer = conversation.add_answer("box")
    unsent = conversation.unsent(answer)
    assert unsent is not None and unsent.id == asked.id
    conversation.put_aside(unsent)
    elsewhere = store.add(store.new_chat().id, "assistant", "")
    assert conversation.messages == [] and conversation.unsent(elsewhere) is None

    conversation.add_question("Q", [], "one")
    first = conversation.add_answer("one")
    conversation.add_answer("two")
    assert conversation.unsent(first) is None, "a second server has it"


def test_old_evidence_is_read_when_it_is_looked_at(conversation: Conversation, store: ChatStore) -> None:
    chat = store.new_chat()
    for number in range(NEWEST):
        store.add(chat.id, "user", f"Q{number}")
        answer = store.add(chat.id, "assistant", "", state="streaming")
        store.finish(answer.id, text="A", state="done", answer={"text": "A"})
    conversation.open(chat)
    assert conversation.messages[1].answer is None and conversation.messages[-1].answer == {"text": "A"}
    assert conversation.whole(1).answer == conversation.messages[1].answer == {"text": "A"}


def test_what_the_store_does_not_take_leaves_everything_as_it_was(
    conversation: Conversation, store: ChatStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise ChatStoreError("the disk is full")

    conversation.set(sampling=Sampling(seed=7))
    with monkeypatch.context() as patched:
        patched.setattr(store, "add", full)
        with pytest.raises(ChatStoreError):
            conversation.add_question("Q", [], "box")
    assert conversation.chat is None and conversation.messages == [] and conversation.sampling.seed == 7
    assert store.chats() == []


@pytest.mark.parametrize(
    ("field", "typed", "valid"),
    [
        ("temperature", "0.7", 0.7),
        ("temperature", "3", None),
        ("temperature", "", None),
        ("max_tokens", "0", None),
        ("seed", "7", 7),
        ("top_p", "0", None),
        ("top_p", "nan", None),
    ],
)
def test_typed_settings_are_checked(field: str, typed: str, valid: float | None) -> None:
    values, faults = checked_sampling({"temperature": "0", "max_tokens": "8", field: typed})
    assert values.get(field) == valid and (field in faults) == (valid is None)


def test_empty_fields_unset_what_may_be_unset() -> None:
    values, faults = checked_sampling({"temperature": "0", "max_tokens": "8", "seed": " ", "top_p": ""})
    assert values == {"temperature": 0.0, "max_tokens": 8, "seed": None, "top_p": None} and not faults
    assert Sampling(**values).stored() == {"temperature": 0.0, "max_tokens": 8}
