"""A conversation as it is sent: roles, text, pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

from vlmconsole.vision.images import Picture


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `places`: of each image the number of characters of `text` before it; (): all come before the text, as
    Qwen's models were trained.
    """

    role: Literal["system", "user", "assistant"]
    text: str
    pictures: tuple[Picture, ...] = ()
    places: tuple[int, ...] = ()


def interleaved(text: str, images: Sequence[dict[str, Any]], places: Sequence[int] = ()) -> Any:
    """Return the `content` of a message: its text, or its parts in order where it has `images` (each a part of its
    own).

    Raises ValueError where `places` are not of these images.
    """
    if not images:
        return text
    parts, begin = [], 0
    for image, place in zip(images, places or [0] * len(images), strict=True):
        if place > begin:
            parts.append({"type": "text", "text": text[begin:place]})
            begin = place
        parts.append(image)
    if text[begin:]:
        parts.append({"type": "text", "text": text[begin:]})
    return parts


def pictures_of(messages: Sequence[Message]) -> list[Picture]:
    """Return every picture of a conversation, in the order in which it is sent."""
    return [picture for message in messages for picture in message.pictures]


def to_request(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the `messages` of a chat request; pictures as data URLs of exactly the bytes that were checked."""
    return [_message(m, [picture.data_url() for picture in m.pictures]) for m in messages]


def to_record(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the same for keeping: each picture is named by the SHA-256 of its bytes instead of carried."""
    return [_message(m, [f"sha256:{picture.sha256}" for picture in m.pictures]) for m in messages]


def system_sha256(kept: Sequence[Mapping[str, Any]]) -> str | None:
    """SHA-256 (hex) of the system prompt's text in messages as they are kept; None without one."""
    text = "\n".join(str(message["content"]) for message in kept if message["role"] == "system")
    return sha256(text.encode("utf-8", "replace")).hexdigest() if text else None


def _message(message: Message, urls: list[str]) -> dict[str, Any]:
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"role": message.role, "content": interleaved(message.text, images, message.places)}
