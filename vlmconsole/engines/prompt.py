"""Text tokens of a conversation, counted here with the model's own tokenizer and chat template.

Needs the packages `tokenizers` and `jinja2` and the model's folder; without them `text_counter` gives None and the
caller asks the server with a probe instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from vlmconsole.engines.messages import Message

IMAGE_PAD = "<|image_pad|>"
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
                found = json.loads(path.read_text("utf-8")).get("chat_template")
                if isinstance(found, str):
                    return found
    except (OSError, ValueError, AttributeError):
        return None
    return None
