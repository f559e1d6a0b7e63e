"""Text tokens of a conversation, counted here with the model's own tokenizer and chat template.

Needs the packages `tokenizers` and `jinja2` and the model's folder; without them `text_counter` gives None and the
caller asks the server with a probe instead. Where the template does not render, the count is not known, and says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from vlmconsole.models.door import can_render, door
from vlmconsole.models.messages import Message, interleaved
from vlmconsole.models.qwen2_5_vl import IMAGE
from vlmconsole.models.template import TemplateError

LONG = 32_768
"""Characters: a longer conversation is counted in pieces, and no further than the context reaches."""
PIECE = 8192
Counter = Callable[[Sequence[Message]], int]


@dataclass(frozen=True, slots=True)
class TextCount:
    """`exact`: text tokens; None where not counted, and `why`. `part`: of a long text what `count_part` gives."""

    exact: int | None = None
    part: tuple[int, int] | None = None
    why: str = ""


@lru_cache(maxsize=4)
def text_counter(folder: Path, variables: tuple[tuple[str, Any], ...] = ()) -> Counter | None:
    """Return a function that counts everything but the visual tokens (text, template, marks around pictures).

    variables: what a server hands the template besides the messages.
    None when the packages or the tokenizer are missing. Loading a large tokenizer takes about a second. Counting waits
    for a process (`models.renderer`), so not in an event loop; it raises TemplateError where nothing can be said.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    if not can_render() or not (folder / "tokenizer.json").is_file():
        return None
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception:  # it raises a type of its own for a file that it cannot read: then there is no local count
        return None
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(messages: Sequence[Message]) -> int:
        template = door(folder)
        (text,) = template.render([([_spoken(m) for m in messages], True)], dict(variables))
        pictures = sum(len(m.pictures) for m in messages)
        if pictures and text.count(IMAGE) != pictures:
            what = f"{text.count(IMAGE)} {IMAGE} for {pictures} images"
            raise TemplateError(f"The chat template in {template.where} writes {what}: its text cannot be counted.")
        # One pad a picture stands for its visual tokens, which the server puts there in its place.
        return len(tokenizer.encode(text, add_special_tokens=False).ids) - pictures

    return count


def is_long(messages: Sequence[Message]) -> bool:
    """Return whether the text is so long that counting its tokens takes a time that one would notice."""
    return sum(len(m.text) for m in messages) > LONG


async def counted(counter: Counter | None, messages: Sequence[Message], enough: int | None = None) -> TextCount:
    """Return the text tokens, counted in a thread; of a long text only a part where `enough` tokens are all that
    matters.
    """
    if counter is None:
        return TextCount()
    try:
        if enough is not None and is_long(messages):
            return TextCount(part=await asyncio.to_thread(count_part, counter, messages, enough))
        return TextCount(exact=await asyncio.to_thread(counter, messages))
    except TemplateError as error:
        return TextCount(why=error.full_message)


def count_part(counter: Counter, messages: Sequence[Message], enough: int) -> tuple[int, int]:
    """Of a long text: (tokens it has at least, tokens it will have about), counted piece by piece up to `enough`.

    So its time goes with the context, not with the length of the text. Where two pieces meet a word may be cut in two,
    which can only be a token too many at each end.
    """
    empty = counter([Message("user", "")])
    whole, seen, tokens, pieces = sum(len(m.text) for m in messages), 0, 0, 0
    for message in messages:
        for at in range(0, len(message.text), PIECE):
            piece = message.text[at : at + PIECE]
            tokens, seen, pieces = tokens + counter([Message("user", piece)]) - empty, seen + len(piece), pieces + 1
            if tokens - 2 * pieces > enough:
                return tokens - 2 * pieces, tokens * whole // seen
    return max(0, tokens - 2 * pieces), tokens + empty * len(messages)


def _spoken(message: Message) -> dict[str, Any]:
    images: list[dict[str, Any]] = [{"type": "image"} for _ in message.pictures]
    return {"role": message.role, "content": interleaved(message.text, images, message.places)}
