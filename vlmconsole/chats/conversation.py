"""The open conversation: its messages, its settings, and what of it goes to a server with the next question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from vlmconsole.chats.history import request_messages, turns
from vlmconsole.chats.records import Chat, Role, StoredMessage
from vlmconsole.chats.sampling import Question, Sampling, Usual
from vlmconsole.chats.store import ChatStore
from vlmconsole.text.plain import one_line

if TYPE_CHECKING:
    from vlmconsole.models.messages import Message
    from vlmconsole.vision.images import Picture

#: Messages that are read with their evidence when a conversation is opened: as many as a screen shows at first.
NEWEST = 24


class Conversation:
    """One conversation at a time. Without one (`chat` is None) the first question begins it, with what was set before.

    The store is opened when it is first needed. Whatever the store raises comes through; a question or an answer that
    it does not take leaves everything as it was.
    """

    def __init__(self, open_store: Callable[[], ChatStore], usual: Usual) -> None:
        self._open_store, self._usual = open_store, usual
        self.chat: Chat | None = None
        self.messages: list[StoredMessage] = []
        #: Id of the question that the next one replaces, together with all that followed it.
        self.changing: int | None = None
        self._system, self._sampling = "", Sampling()  # of a conversation that has not begun

    @cached_property
    def store(self) -> ChatStore:
        """All conversations of the lab home."""
        return self._open_store()

    # -- opening -------------------------------------------------------------------------------------------

    def open(self, chat: Chat | None) -> None:
        """Read a conversation; None for one that has not begun."""
        self.chat = chat
        self.read()

    def read(self) -> None:
        """The messages as the store has them now, the newest with their evidence."""
        self.messages = self.store.messages(self.chat.id, evidence=NEWEST) if self.chat is not None else []

    def whole(self, index: int) -> StoredMessage:
        """Return the message at `index` with its evidence, read from the store where it came without."""
        message = self.messages[index]
        ended = message.role == "assistant" and message.state != "streaming"
        if ended and message.answer is None:
            message = self.messages[index] = self.store.message(message.id)
        return message

    def replace(self, message: StoredMessage) -> None:
        """A message reached its next state; nothing where another conversation is open by now."""
        self.messages = [message if known.id == message.id else known for known in self.messages]

    # -- settings ------------------------------------------------------------------------------------------

    @property
    def system(self) -> str:
        """System prompt, "" for none."""
        return self._system if self.chat is None else self.chat.system

    @property
    def sampling(self) -> Sampling:
        return self._sampling if self.chat is None else Sampling.read(self.chat.sampling)

    def set(self, *, system: str | None = None, sampling: Sampling | None = None) -> None:
        """Change the settings of this conversation, or of the one that its first question will begin."""
        if self.chat is None:
            self._system = self._system if system is None else system
            self._sampling = sampling or self._sampling
            return
        changed: dict[str, Any] = {} if system is None else {"system": system}
        if sampling is not None:
            unknown = self.chat.sampling.keys() - Sampling.__dataclass_fields__.keys()  # of a later version: they stay
            changed["sampling"] = {name: self.chat.sampling[name] for name in unknown} | sampling.stored()
        self.store.set_chat(self.chat.id, **changed)
        self.chat = self.store.chat(self.chat.id)

    def rename(self, title: str) -> None:
        assert self.chat is not None
        self.store.set_chat(self.chat.id, title=title)
        self.chat = self.store.chat(self.chat.id)

    # -- messages ------------------------------------------------------------------------------------------

    def answers(self) -> list[StoredMessage]:
        return [message for message in self.messages if message.role == "assistant"]

    def answer_at(self, index: int) -> StoredMessage | None:
        """Return the message at `index` if it is an answer, else the answer to the question there."""
        if not 0 <= index < len(self.messages):
            return None
        return next((message for message in self.messages[index:] if message.role == "assistant"), None)

    def question_at(self, index: int) -> StoredMessage | None:
        """Return the message at `index` if it is a question, else the question of the answer there."""
        return next((message for message in reversed(self.messages[: index + 1]) if message.role == "user"), None)

    def answered(self, index: int) -> tuple[StoredMessage, list[StoredMessage]] | None:
        """Return the question at or before `index`, and all answers to it."""
        question = self.question_at(index)
        if question is None:
            return None
        answers: list[StoredMessage] = []
        for message in self.messages[self.messages.index(question) + 1 :]:
            if message.role != "assistant":
                break
            answers.append(message)
        return question, answers

    def unsent(self, answer: StoredMessage) -> StoredMessage | None:
        """Return the question of an answer that was stopped before anything was sent, if nobody else has it.

        None where another conversation is open, or where it was asked of a second server too, or asked again.
        """
        if self.chat is None or self.chat.id != answer.chat_id:
            return None
        *_, question = [message for message in self.messages if message.id < answer.id and message.role == "user"]
        stored = self.store.messages(self.chat.id, superseded=True, evidence=0)
        later = any(message.id > question.id and message.id != answer.id for message in stored)
        return None if later else question

    # -- asking --------------------------------------------------------------------------------------------

    def before(self) -> list[StoredMessage]:
        """Return the messages that remain before the next question."""
        return [message for message in self.messages if self.changing is None or message.id < self.changing]

    def questions(self) -> list[StoredMessage]:
        """Return the questions among them."""
        return [message for message in self.before() if message.role == "user"]

    def send_newest(self, count: int) -> None:
        """From now on send only the last `count` questions and their answers; all of them: send everything."""
        asked = self.questions()
        since = 0
        if count < len(asked):
            since = asked[-count].id if count else asked[-1].id + 1
        self.set(sampling=replace(self.sampling, since=since))

    def question(self, text: str, pictures: Sequence[Picture], server: str, since: int | None = None) -> Question:
        """Return the next question as `server` would be asked it, for counting: earlier pictures come without their
        bytes.

        `since`: as if it were set to that (None: as it is set).
        """
        from vlmconsole.models.messages import Message

        sampling = self.sampling
        kept = turns(self.before(), server, sampling.since if since is None else since)
        messages = [*request_messages(self.system, kept), Message("user", text, tuple(pictures))]
        return sampling.question(messages, self._usual)

    def asked(self) -> dict[str, Any]:
        """Return how the next question would be asked, in the words of a request."""
        question = self.sampling.question([], self._usual)
        return {
            "temperature": question.temperature,
            "max_tokens": question.max_tokens,
            "system": bool(self.system),
            **question.extra,
        }

    def begin(self, messages: Sequence[Message], server: str, title: str = "") -> StoredMessage:
        """Begin a conversation of its own with these turns, such as an example's, the last of them a question.

        Returns that question, stored and not asked yet. `title`: "" for the question's first words.
        """
        *_, last = messages
        spoken = [message for message in messages if message.role != "system"]
        system = "\n".join(message.text for message in messages if message.role == "system")
        self.store.keep_files([picture for message in spoken for picture in message.pictures])
        with self.store.together():
            chat = self.store.new_chat(server=server, title=one_line(title or last.text, 60), system=system)
            for message in spoken:
                role: Role = "assistant" if message.role == "assistant" else "user"
                self.store.add(chat.id, role, message.text, pictures=message.pictures, places=message.places)
        self.changing, self._system, self._sampling = None, "", Sampling()
        self.open(self.store.chat(chat.id))
        return self.messages[-1]

    def add_question(self, text: str, pictures: Sequence[Picture], server: str) -> StoredMessage:
        """Store a question: it begins the conversation where there is none, and replaces the one that is `changing`."""
        self.store.keep_files(pictures)  # before: other consoles wait for what is written together
        with self.store.together():
            chat = self.chat
            if chat is None:
                title = one_line(text, 60) or pictures[0].name
                chat = self.store.new_chat(server=server, title=title, system=self._system)
                self.store.set_chat(chat.id, sampling=self._sampling.stored())
            if self.changing is not None:
                self.store.supersede(chat.id, self.changing)
            question = self.store.add(chat.id, "user", text, pictures=pictures)
        self.chat, self._system, self._sampling = self.store.chat(chat.id), "", Sampling()
        if self.changing is not None:
            self.changing = None
            self.read()
        else:
            self.messages.append(question)
        return question

    def add_answer(self, server: str, *, instead: int | None = None) -> StoredMessage:
        """Store an empty answer that is to stream; `instead`: id of the one that it replaces with all that followed."""
        assert self.chat is not None
        with self.store.together():
            if instead is not None:
                self.store.supersede(self.chat.id, instead)
            answer = self.store.add(self.chat.id, "assistant", "", state="streaming", server=server)
        self.chat = self.store.chat(self.chat.id)
        if instead is not None:
            self.read()
        else:
            self.messages.append(answer)
        return answer

    def put_aside(self, message: StoredMessage) -> None:
        """Take a message and all that followed it out of the conversation; the store keeps them."""
        self.store.supersede(message.chat_id, message.id)
        self.read()
