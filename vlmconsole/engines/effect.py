"""Whether an adapter changes what a server answers: the same greedy question to the base and to the adapter.

A request that names an adapter can be answered by the base without a word (SGLang does so for a wrong name), so the
effect is looked at and never assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from vlmconsole.engines.messages import Message

if TYPE_CHECKING:
    from vlmconsole.engines.chat import ChatClient
    from vlmconsole.engines.selected import SelectedAdapter

TOKENS = 24
LEAST = 1e-3
"""A first token's log-probability must differ by more than this (and by ten times the base's own spread)."""


@dataclass(frozen=True)
class Effect:
    """`first` are the first token's log-probabilities (base, base again, adapter); None where the server gives none."""

    state: Literal["effect verified", "no effect seen"]
    why: str
    base: str
    adapter: str
    first: tuple[float | None, float | None, float | None]

    def __str__(self) -> str:
        return f"{self.state}: {self.why}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "state": self.state,
            "why": self.why,
            "base": self.base,
            "adapter": self.adapter,
            "first_token_logprob": list(self.first),
        }


async def effect(client: ChatClient, adapter: SelectedAdapter, messages: Sequence[Message]) -> Effect:
    """Asks the base twice and the adapter once, greedy, up to 24 tokens. Raises EngineError when one is not answered.

    The base is asked twice because servers repeat themselves only so well; a difference must be larger than that.
    """
    base, first = await client.glance(messages, None, TOKENS)
    again, second = await client.glance(messages, None, TOKENS)
    with_it, third = await client.glance(messages, adapter, TOKENS)
    logprobs = (first, second, third)
    if first is not None and second is not None and third is not None:
        spread, moved = abs(first - second), abs(first - third)
        if moved > max(LEAST, 10 * spread):
            why = f"the first token's log-probability moves by {moved:.3g} (the base repeats it within {spread:.1g})"
            return Effect("effect verified", why, base, with_it, logprobs)
    if base == again and base != with_it:
        return Effect("effect verified", "another greedy answer to the same question", base, with_it, logprobs)
    if base != again:
        why = "the base itself answers this question in two ways, so nothing can be said"
    else:
        why = "the same greedy answer with and without it" + ("" if first is None else ", and the same first token")
    return Effect("no effect seen", why, base, with_it, logprobs)


async def with_effect(client: ChatClient, adapter: SelectedAdapter, messages: Sequence[Message]) -> SelectedAdapter:
    """The adapter with a note on its effect, where the engine may answer with the base unasked; elsewhere as it is.

    mlx-vlm says which adapter is loaded, and loads it or refuses. Asked is the text alone under a system message of
    ours: the measured question that follows must find neither its prefix nor its picture in a cache of the server.
    Raises EngineError.
    """
    if client.profile.engine == "mlx":
        return adapter
    text = next((m.text for m in reversed(messages) if m.role == "user" and m.text.strip()), "Describe the picture.")
    found = await effect(client, adapter, [Message("system", "A look at an adapter's effect."), Message("user", text)])
    return replace(adapter, notes=(*adapter.notes, f"adapter {adapter.name}: {found}"))
