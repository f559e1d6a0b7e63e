"""Whether an adapter changes what a server answers: the same greedy question to the base and to the adapter.

A request that names an adapter can be answered by the base without a word (SGLang does so for a wrong name), so the
effect is looked at and never assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from vlmconsole.engines.registry import find_engine
from vlmconsole.models.messages import Message

if TYPE_CHECKING:
    from vlmconsole.client.chat import ChatClient
    from vlmconsole.engines.adapter_choice import SelectedAdapter

TOKENS = 24
LEAST = 1e-4
"""A token's log-probability must differ by more than this (and by ten times the base's own spread). Sums in another
order move one by some 1e-5; an adapter that only makes a sure answer surer moved it by 9e-4 on a real SGLang."""


@dataclass(frozen=True)
class Effect:
    """`moved` and `spread` are the largest differences of a token's log-probability, of the adapter's answer to the
    base's and of the base's second answer to its first; None where the server tells no probabilities."""

    state: Literal["effect verified", "no effect seen"]
    why: str
    base: str
    adapter: str
    moved: float | None = None
    spread: float | None = None

    def __str__(self) -> str:
        return f"{self.state}: {self.why}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


async def effect(client: ChatClient, adapter: SelectedAdapter, messages: Sequence[Message]) -> Effect:
    """Asks the base twice and the adapter once, greedy, up to 24 tokens. Raises EngineError when one is not answered.

    The base is asked twice because servers repeat themselves only so well; a difference must be larger than that.
    Where the answers are the same, all their tokens are compared: the first is often certain with and without it.
    """
    base, first = await client.glance(messages, None, TOKENS)
    again, second = await client.glance(messages, None, TOKENS)
    with_it, third = await client.glance(messages, adapter, TOKENS)
    n = min(len(first), len(second), len(third), TOKENS if base == again == with_it else 1)
    if not n:
        moved = spread = None
    else:
        moved, spread = _largest(first[:n], third[:n]), _largest(first[:n], second[:n])
    made = partial(Effect, base=base, adapter=with_it, moved=moved, spread=spread)
    if base == again and base != with_it:
        return made("effect verified", "a different greedy answer to the same question")
    if moved is not None and spread is not None and moved > max(LEAST, 10 * spread):
        which = "the first token's" if n == 1 else f"one of {n} tokens'"
        return made(
            "effect verified",
            f"{which} log-probability changes by {moved:.3g} (base repeats within {spread:.1g})",
        )
    if base != again:
        return made("no effect seen", "cannot tell: the base model itself gives two different answers")
    same = "" if moved is None else f", log-probabilities within {moved:.1g}"
    return made("no effect seen", f"the same greedy answer with and without it{same}")


def _largest(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


async def with_effect(client: ChatClient, adapter: SelectedAdapter, messages: Sequence[Message]) -> SelectedAdapter:
    """Return the adapter with a note on its effect, where the engine may answer with the base unasked; elsewhere as it
    is.

    One that is told a folder loads it or refuses. Asked is the text alone under a system message of
    ours: the measured question that follows must find neither its prefix nor its picture in a cache of the server.
    Raises EngineError.
    """
    if find_engine(client.profile.engine).adapter_rule == "by folder":
        return adapter
    text = next((m.text for m in reversed(messages) if m.role == "user" and m.text.strip()), "Describe the picture.")
    change = await effect(client, adapter, [Message("system", "A look at an adapter's effect."), Message("user", text)])
    return replace(adapter, notes=(*adapter.notes, f"adapter {adapter.name}: {change}"))
