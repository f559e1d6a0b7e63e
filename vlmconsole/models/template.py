"""The chat template that a model folder holds: which of its files counts, as transformers decides it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.system.reading import UnreadableError, read_json, read_text

PROCESSOR, LEGACY, PLAIN, TOKENIZER = (
    "processor_config.json",
    "chat_template.json",
    "chat_template.jinja",
    "tokenizer_config.json",
)
FURTHER, TOKENS = "additional_chat_templates", "special_tokens_map.json"
FILES = (PROCESSOR, LEGACY, PLAIN, TOKENIZER, TOKENS)
"""All that a prompt's form is read from, besides the folder `FURTHER`."""
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

# A turn as Qwen writes it, and nothing around it: the bundled model's template, and how every in-process prompt was
# put together before the model's own template was asked.
BARE = """\
{%- for message in messages -%}
<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}
{%- for part in message['content'] -%}
{%- if 'image' in part or 'image_url' in part or part['type'] in ('image', 'image_url', 'input_image') -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- elif 'video' in part or part['type'] == 'video' -%}
<|vision_start|><|video_pad|><|vision_end|>
{%- elif 'text' in part -%}
{{ part['text'] }}
{%- endif -%}
{%- endfor -%}
{%- endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""


class TemplateError(LabError):
    """A chat template that is not there, cannot be read, or does not render; says which, why and what to do."""


@dataclass(frozen=True)
class ChatTemplate:
    """A template's text, the file that it was read from, and the special tokens that it may name."""

    text: str
    source: str
    special: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        """Of its text, hex."""
        return hashlib.sha256(self.text.encode("utf-8", "replace")).hexdigest()


def find_template(folder: Path) -> ChatTemplate:
    """Return the template that transformers' processor, and so every server, would render for this folder.

    In its order: `processor_config.json`, `chat_template.json`, `chat_template.jinja`, `tokenizer_config.json`. Of
    several by name the one called "default" counts. Raises TemplateError.
    """
    tokenizer = _object(folder, TOKENIZER)
    special = _special({**_object(folder, TOKENS), **tokenizer})
    legacy, further = _object(folder, LEGACY), sorted((folder / FURTHER).glob("*.jinja"))
    if legacy and further:
        raise TemplateError(
            f"{folder} holds {LEGACY} and {FURTHER}, which no server loads together.",
            f"Keep {PLAIN} alone.",
            code="template-ambiguous",
        )
    for file, value in ((PROCESSOR, _object(folder, PROCESSOR)), (LEGACY, legacy)):
        if value.get("chat_template") is not None:
            return _chosen(folder, file, value["chat_template"], special)
    try:
        if (folder / PLAIN).is_file():
            return ChatTemplate(read_text(folder / PLAIN), PLAIN, special)
        if further:
            texts = {path.stem: read_text(path) for path in further}
            return _chosen(folder, FURTHER, texts, special)
    except UnreadableError as error:
        raise TemplateError(f"{error.phrase}.", _MEND, code=error.code) from None
    if tokenizer.get("chat_template") is not None:
        return _chosen(folder, TOKENIZER, tokenizer["chat_template"], special)
    raise TemplateError(
        f"{folder} has no chat template ({', '.join((LEGACY, PLAIN, TOKENIZER))}).", _MEND, code="template-missing"
    )


_MEND = "Take the model's files from their source again, or give it a chat_template.jinja."


def _object(folder: Path, file: str) -> dict[str, Any]:
    try:
        value = read_json(folder / file)
    except UnreadableError as error:
        if error.missing:
            return {}
        raise TemplateError(f"{error.phrase}.", _MEND, code=error.code) from None
    if not isinstance(value, dict):
        raise TemplateError(f"{folder / file} is not a JSON object.", _MEND, code="json-invalid")
    return value


def _chosen(folder: Path, file: str, value: Any, special: Mapping[str, Any]) -> ChatTemplate:
    """One template of what a file states: its text, or texts by name as an object or as a list of pairs."""
    if isinstance(value, str):
        return ChatTemplate(value, file, special)
    if isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        value = {entry.get("name"): entry.get("template") for entry in value}
    text = value.get("default") if isinstance(value, dict) else None
    if not isinstance(text, str):
        names = ", ".join(map(str, value)) if isinstance(value, dict) else ""
        known = f" (there are: {names})" if names else ""
        raise TemplateError(f"{folder / file} names no default chat template{known}.", _MEND, code="template-missing")
    return ChatTemplate(text, file, special)


def _special(values: Mapping[str, Any]) -> dict[str, Any]:
    """The special tokens by name; newer files keep a token as an object with its `content`."""

    def content(value: Any) -> Any:
        return value.get("content") if isinstance(value, Mapping) else value

    return {key: text for key in _SPECIAL if isinstance(text := content(values.get(key)), str)}
