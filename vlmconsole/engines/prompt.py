"""Text tokens of a conversation, counted here with the model's own tokenizer and chat template.

Needs the packages `tokenizers` and `jinja2` and the model's folder; without them `text_counter` gives None and the
caller asks the server with a probe instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from vlmconsole.engines.messages import Message
from vlmconsole.runs.reading import read_json

IMAGE_PAD = "<|image_pad|>"
LONG = 32_768
"""Characters: a longer conversation is counted in pieces, in a thread, and no further than the context reaches."""
PIECE = 8192
Counter = Callable[[Sequence[Message]], int]


@lru_cache(maxsize=4)
def text_counter(folder: Path) -> Counter | None:
    """A function that counts everything but the visual tokens (text, template, marks around pictures).

    None when the packages, the tokenizer or the template are missing. Loading a large tokenizer takes about a second.
    """
    try:
        import jinja2.sandbox
        from tokenizers import Tokenizer
    except ImportError:
        return None
    template = _template(folder)
    if template is None or not (folder / "tokenizer.json").is_file():
        return None

    def refuse(message: str) -> str:
        raise jinja2.TemplateError(message)

    # A template is a program from a model's author: it runs sandboxed, as it does in the servers.
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        compiled = environment.from_string(template)
    except Exception:  # both raise types of their own for a file that they cannot read: then there is no local count
        return None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    pad = tokenizer.token_to_id(IMAGE_PAD)

    def count(messages: Sequence[Message]) -> int:
        rendered = compiled.render(messages=[_spoken(m) for m in messages], add_generation_prompt=True)
        ids = tokenizer.encode(rendered, add_special_tokens=False).ids
        # One pad a picture stands for its visual tokens, which the server puts there in its place.
        pictures = sum(len(m.pictures) for m in messages)
        return len(ids) - (pictures if pad is not None else 0)

    return count


def is_long(messages: Sequence[Message]) -> bool:
    """Whether the text is so long that counting its tokens takes a time that one would notice."""
    return sum(len(m.text) for m in messages) > LONG


async def counted(
    counter: Counter | None, messages: Sequence[Message], enough: int
) -> tuple[int | None, tuple[int, int] | None]:
    """The text tokens, or of a long text what `count_part` gives, in a thread; (None, None) without a counter."""
    if counter is None or not is_long(messages):
        return (counter(messages) if counter else None), None
    return None, await asyncio.to_thread(count_part, counter, messages, enough)


def count_part(counter: Counter, messages: Sequence[Message], enough: int) -> tuple[int, int]:
    """Of a long text: (tokens it has at least, tokens it will have about), counted piece by piece up to ``enough``.

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
    if not message.pictures:
        return {"role": message.role, "content": message.text}
    parts: list[dict[str, Any]] = [{"type": "image"} for _ in message.pictures]
    if message.text:
        parts.append({"type": "text", "text": message.text})
    return {"role": message.role, "content": parts}


def _template(folder: Path) -> str | None:
    plain = folder / "chat_template.jinja"
    try:
        if plain.is_file():
            return plain.read_text("utf-8")
        for name in ("chat_template.json", "tokenizer_config.json"):
            path = folder / name
            if path.is_file():
                found = read_json(path).get("chat_template")
                if isinstance(found, str):
                    return found
    except (OSError, ValueError, AttributeError):
        return None
    return None
