"""How a conversation is asked: what a person set for it, and the question that comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # messages bring the image library, which the first frame does not wait for
    from vlmconsole.models.messages import Message


class Usual(Protocol):
    """What holds where a conversation sets nothing: the lab's settings."""

    @property
    def temperature(self) -> float: ...

    @property
    def max_tokens(self) -> int: ...


@dataclass(frozen=True)
class Question:
    """Everything that is asked at once: the messages to send and how they are to be answered.

    `chosen`: False where `max_tokens` is only the usual ceiling, which a full context lowers. `extra`: seed and top-p,
    where they are set. `other_base`: use the adapter although it was trained on another base.
    """

    messages: Sequence[Message]
    temperature: float
    max_tokens: int
    chosen: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)
    adapter: str = ""
    other_base: bool = False


@dataclass(frozen=True)
class Sampling:
    """Settings of one conversation. A field's default means "not set": the usual or the server's own holds.

    `since`: id of the first message that is sent, 0 for all of them.
    """

    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    top_p: float | None = None
    adapter: str = ""
    other_base: bool = False
    since: int = 0

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Sampling:
        """From the JSON object in the store, as `checked.read_sampling` has checked it; other keys are passed over."""
        return cls(**{item.name: stored[item.name] for item in fields(cls) if item.name in stored})

    def stored(self) -> dict[str, Any]:
        """Return the JSON object: what is set, and nothing else."""
        values = {item.name: (getattr(self, item.name), item.default) for item in fields(self)}
        return {name: value for name, (value, default) in values.items() if value != default}

    def question(self, messages: Sequence[Message], usual: Usual) -> Question:
        """Ask `messages` with these settings, and with the usual ones where nothing is set."""
        return Question(
            messages,
            temperature=float(usual.temperature if self.temperature is None else self.temperature),
            max_tokens=usual.max_tokens if self.max_tokens is None else self.max_tokens,
            chosen=self.max_tokens is not None,
            extra={name: value for name in ("seed", "top_p") if (value := getattr(self, name)) is not None},
            adapter=self.adapter,
            other_base=self.other_base,
        )


def checked_sampling(values: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """(values that may be set, by field; what is wrong with the other fields, in words).

    Temperature 0–2 and a ceiling of at least one token; `seed` (a whole number from 0) and `top_p` (above 0, at most 1)
    may be left empty, and then are None: the server's own.
    """
    valid: dict[str, Any] = {}
    faults: dict[str, str] = {}
    for name, kind, fits, wanted, may_be_empty in _TYPED:
        text = values.get(name, "").strip()
        try:
            value = None if may_be_empty and not text else kind(text)
        except ValueError:
            value = -1
        if value is None or fits(value):
            valid[name] = value
        else:
            faults[name] = wanted
    return valid, faults


_TYPED: tuple[tuple[str, Callable[[str], Any], Callable[[Any], bool], str, bool], ...] = (
    ("temperature", float, lambda value: 0 <= value <= 2, "a number from 0 to 2", False),
    ("max_tokens", int, lambda value: value >= 1, "a whole number of tokens, at least 1", False),
    ("seed", int, lambda value: 0 <= value < 2**31, "a whole number from 0, or empty", True),
    ("top_p", float, lambda value: 0 < value <= 1, "a number above 0, at most 1, or empty", True),
)
