"""The one door to a model's own chat template: whoever needs a prompt's text, tokens or hash asks here.

SFT, GRPO and in-process evaluation render what they ask with it, chat and bench count with it, conditions hold its
hash. What it gives is what transformers and mlx-vlm's server render (a test compares token by token).
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from vlmconsole.models.renderer import Renderer, RenderError
from vlmconsole.models.template import BARE, FILES, FURTHER, ChatTemplate, TemplateError, find_template

PROBE: tuple[Mapping[str, Any], ...] = (
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What do you see?"}]},
)
"""The question whose rendering stands for a prompt's form in conditions: without a system turn, with an image."""
NEEDED = "jinja2"


class Door:
    """A template that renders conversations. `where` names it in errors."""

    def __init__(self, template: ChatTemplate, where: str) -> None:
        self.template, self.where = template, where
        self._renderer = Renderer(template.text)

    def render(
        self,
        conversations: Sequence[tuple[Sequence[Mapping[str, Any]], bool]],
        variables: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Return the text of each (messages, whether the next answer is begun), in transformers' form of messages.

        variables: what a server hands over besides. Raises TemplateError with what the template said.
        """
        try:
            return self._renderer.render(conversations, {**self.template.special, **(variables or {})})
        except RenderError as error:
            raise TemplateError(
                f"The chat template in {self.where} cannot be rendered: {str(error).rstrip('.')}.",
                "It may not allow this conversation: leave out the system prompt, or let user and assistant take"
                " turns. Otherwise mend the file, or take it from its source again.",
                code="template-unrendered",
            ) from None

    @cached_property
    def prompt_sha256(self) -> str:
        """SHA-256 of `PROBE` as it is rendered: prompts of another form have another one. Raises TemplateError."""
        return self._probed({})

    def facts(self, variables: Mapping[str, Any] | None = None) -> dict[str, str]:
        """Return the hashes that conditions hold; variables: as in `render`. Raises TemplateError."""
        probed = self._probed(variables) if variables else self.prompt_sha256
        return {"prompt_sha256": probed, "template_sha256": self.template.sha256}

    def _probed(self, variables: Mapping[str, Any]) -> str:
        (text,) = self.render([(PROBE, True)], variables)
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def can_render() -> bool:
    """Return whether this Python has what templates need; training environments do."""
    return importlib.util.find_spec(NEEDED) is not None


def door(folder: Path) -> Door:
    """Return the door of a model folder, the same one while its files stay as they are. Raises TemplateError."""
    stamps = []
    for path in (*(folder / file for file in FILES), *sorted((folder / FURTHER).glob("*.jinja"))):
        try:
            status = path.stat()
        except OSError:
            continue
        stamps.append((path.name, status.st_size, status.st_mtime_ns, status.st_ino))
    return _door(folder.absolute(), tuple(stamps))


@lru_cache(maxsize=8)
def _door(folder: Path, stamps: tuple[tuple[str, int, int, int], ...]) -> Door:
    template = find_template(folder)
    return Door(template, str(folder / template.source))


@lru_cache(maxsize=1)
def bare_door() -> Door:
    """Return how prompts were put together in-process before the model's template was asked; runs without a hash had
    it.
    """
    return Door(ChatTemplate(BARE, "turns alone"), "turns alone")
