"""What the conversation store hands out: plain, frozen records."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from vlmconsole.errors import LabError

if TYPE_CHECKING:  # pictures are decoded long after the first frame; their libraries wait until then
    from vlmconsole.vision.images import Picture

Role = Literal["user", "assistant"]

#: How a message ended. `streaming` is only ever seen while its writer lives; a reader that finds the writer
#: gone turns it into `interrupted`.
MessageState = Literal["done", "streaming", "cut", "stopped", "failed", "interrupted"]
STATES: frozenset[str] = frozenset(get_args(MessageState))


class ChatStoreError(LabError):
    """The store cannot do what was asked; the message is one line for people."""


@dataclass(frozen=True)
class StoredPicture:
    """A picture as it was sent. `sha256` names the file that holds exactly those bytes; `place`: how many characters of
    its message come before it.
    """

    sha256: str
    name: str
    mime: str
    size: tuple[int, int]
    original_size: tuple[int, int]
    pixel_sha256: str
    changes: tuple[str, ...]
    note: str
    path: Path
    place: int = 0

    @property
    def description(self) -> str:
        """One line for people: what was done to the picture before sending."""
        return "; ".join(self.changes) or "sent as is"

    def facts(self) -> dict[str, Any]:
        """Return the JSON shape used in exports and in the database."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "pixel_sha256": self.pixel_sha256,
            "mime": self.mime,
            "size": list(self.size),
            "original_size": list(self.original_size),
            "changes": list(self.changes),
            "note": self.note,
            **({"place": self.place} if self.place else {}),
        }

    def outline(self) -> Picture:
        """Return the picture without its bytes: enough to count its tokens, and never to be sent."""
        return self._picture(b"")

    def load(self) -> Picture:
        """Return the picture as it was sent, byte for byte. Raises PictureError when its file is gone or was
        changed.
        """
        from vlmconsole.vision.limits import PictureError

        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise PictureError(f"{self.name} is no longer kept in {self.path.parent} ({error.strerror})") from error
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise PictureError(f"{self.path} was changed after it was sent; it is not sent again as the same image")
        return self._picture(data)

    def _picture(self, data: bytes) -> Picture:
        from vlmconsole.vision.images import Picture

        return Picture(
            name=self.name,
            source_path=self.path,
            data=data,
            mime=self.mime,
            size=self.size,
            sha256=self.sha256,
            pixel_sha256=self.pixel_sha256,
            original_size=self.original_size,
            changes=self.changes,
            note=self.note,
        )


@dataclass(frozen=True)
class StoredMessage:
    """One message. `answer` is the evidence of a model's answer (the `chat --json` shape), None for a user."""

    id: int
    chat_id: int
    role: Role
    text: str
    reasoning: str
    created: float
    state: MessageState
    error: str
    server: str
    answer: dict[str, Any] | None
    superseded: bool
    pictures: tuple[StoredPicture, ...]
    damaged: bool = False  # a part of its evidence was not what it must be, and was left out


@dataclass(frozen=True)
class Draft:
    """A question that was written and not sent. `chat_id` is the conversation it was for, None for a new one;
    `changing` the message that it was to replace, if any."""

    text: str
    chat_id: int | None
    changing: int | None
    pictures: tuple[StoredPicture, ...]


@dataclass(frozen=True)
class Chat:
    """A conversation's head. `created` and `updated` are wall-clock seconds; `count` counts live messages.

    `damaged`: a part of `sampling` was not what it must be; the usual holds instead.
    """

    id: int
    title: str
    created: float
    updated: float
    server: str
    system: str
    sampling: dict[str, Any]
    count: int
    damaged: bool = False
