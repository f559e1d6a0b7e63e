"""Proof of sight: the pictures as sent, and their visual tokens as the server really counted them. And the budget.

Observed = the server's prompt tokens − the tokens of the same text in the same template. A tick is never given on the
expectation alone: without an observation the state is "not verifiable", and `why` says what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from vlmconsole.models.messages import Message, pictures_of
from vlmconsole.streams.usage import Usage
from vlmconsole.vision.images import Picture
from vlmconsole.vision.tokens import ProcessorError, ProcessorSettings, fit_tokens, visual_tokens

LOCAL = "prompt tokens − text tokens (local tokenizer and template)"
REPORTED = "image tokens in the server's usage"
PROBE = "prompt tokens − text tokens (one-token text-only probe)"
BYTES_PER_TOKEN = 3
"""For a budget without a tokenizer: few languages and tokenizers need more tokens than one for three bytes."""
LONGEST_TOKEN = 128
"""Bytes: no word of the vocabularies in use is longer (runs of blanks come near): the least tokens of a text."""


@dataclass(frozen=True, slots=True)
class Sight:
    """One picture of one request: size as sent (width, height), hash of the bytes, visual tokens."""

    name: str
    sent_size: tuple[int, int]
    sha256: str
    changes: str
    expected: int | None
    observed: int | None
    method: str
    state: Literal["equal", "different", "not verifiable"]
    why: str

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "sent_size": list(self.sent_size)}


@dataclass(frozen=True, slots=True)
class TextTokens:
    """How many prompt tokens are not visual, and how that is known. None: not known, `why` says why not."""

    count: int | None
    method: str
    why: str = ""


def expected_tokens(picture: Picture, settings: ProcessorSettings | None) -> int | None:
    """Visual tokens by the processor's arithmetic; None without settings or for a picture that it refuses."""
    if settings is None:
        return None
    try:
        return visual_tokens(*picture.size, settings).visual_tokens
    except ProcessorError:
        return None


def look(
    messages: Sequence[Message], usage: Usage, text: TextTokens, settings: ProcessorSettings | None
) -> list[Sight]:
    """Return what can be proved about each picture. usage: of the answer; text: see `TextTokens`.

    A server counts a prompt as a whole. With several pictures the sum is compared, and each picture's own count is
    stated only where the sum fits exactly.
    """
    pictures = pictures_of(messages)
    expected = [expected_tokens(picture, settings) for picture in pictures]
    total, method, why = _observed(usage, text)
    known = [e for e in expected if e is not None]
    complete = len(known) == len(pictures)
    state: Literal["equal", "different", "not verifiable"] = "not verifiable"
    if total is not None and complete:
        state = "equal" if total == sum(known) else "different"
        why = f"{total} image tokens observed, {sum(known)} expected"
        if total <= 0:
            why += ": the server ignored the image"
    elif total is not None:
        if total <= 0:
            state = "different"
            why = f"{total} image tokens observed: the server ignored the image"
        else:
            why = "image settings unknown: set `processor` in the profile"
    if len(pictures) > 1 and total is not None:
        why += f" ({len(pictures)} images sent)"
    sights = []
    for picture, tokens in zip(pictures, expected, strict=True):
        observed = total if len(pictures) == 1 else (tokens if state == "equal" else None)
        sights.append(
            Sight(picture.name, picture.size, picture.sha256, picture.description, tokens, observed, method, state, why)
        )
    return sights


def _observed(usage: Usage, text: TextTokens) -> tuple[int | None, str, str]:
    zero = usage.prompt_tokens == 0 or (usage.prompt_tokens is None and usage.zero_prompt)
    if zero and not usage.image_tokens:  # a prompt has a text: these counts were never made
        return None, "none", "the server does not count prompt tokens (it reported 0)"
    if usage.prompt_tokens is not None and text.count is not None and text.method == LOCAL:
        return usage.prompt_tokens - text.count, LOCAL, ""
    if usage.image_tokens is not None:
        return usage.image_tokens, REPORTED, ""
    if usage.prompt_tokens is None:
        return None, "none", "the server did not report its prompt tokens"
    if text.count is None:
        return None, "none", text.why or "the text's token count is unknown"
    return usage.prompt_tokens - text.count, text.method, ""


@dataclass(frozen=True, slots=True)
class Budget:
    """Tokens of a question before it is sent. text_exact: counted; False: estimated from its length, upwards.

    context None: not known, then `fits` is True and says nothing. advice: what to do when it does not fit.
    shrink_to: (width, height) that the last picture would have to have. certain: question and pictures alone, without
    an answer and by the least that their text can take, are past the context: the server can only refuse.
    fits_alone: a new conversation could hold it.
    """

    visual: int | None
    text: int
    answer: int
    context: int | None
    fits: bool
    text_exact: bool
    advice: str
    shrink_to: tuple[int, int] | None = None
    certain: bool = False
    fits_alone: bool = False


def budget(
    messages: Sequence[Message],
    answer: int,
    context: int | None,
    settings: ProcessorSettings | None,
    text_tokens: int | None,
    counted: tuple[int, int] | None = None,
    lowest: int = 0,
) -> Budget:
    """Visual + text + answer tokens against the context. text_tokens: counted, or None to estimate; then `counted`
    may hold what a part of a long text says: (tokens it has at least, tokens it will have).

    lowest: where nobody chose how long the answer may be, it is lowered to what the context leaves, down to so many.
    """
    pictures = pictures_of(messages)
    each = [expected_tokens(picture, settings) for picture in pictures]
    visual = None if any(e is None for e in each) else sum(e for e in each if e is not None)
    exact = text_tokens is not None
    least, text = counted or (_least(messages), _estimated(messages))
    if text_tokens is not None:
        least = text = text_tokens
    if lowest and context is not None:
        answer = min(answer, max(lowest, context - (visual or 0) - text))
    needed = (visual or 0) + text + answer
    if context is None or needed <= context:
        return Budget(visual, text, answer, context, True, exact, "")
    over = needed - context
    size = None
    if pictures and settings is not None and each[-1] is not None:
        room = each[-1] - over
        size = fit_tokens(*pictures[-1].size, room, settings) if room > 0 else None
    # What the last question takes alone, its text by its share of the whole: could a new conversation hold it?
    last = messages[-1:]
    share = text * _estimated(last) // max(1, _estimated(messages))
    seen = sum(expected_tokens(picture, settings) or 0 for picture in pictures_of(last))
    alone = share + seen + answer <= context
    end = "start a new conversation" if alone else ("shorten the question" if share > seen else "send fewer images")
    advice = _advice(over, answer, pictures, size, end)
    certain = (visual or 0) + least >= context
    return Budget(visual, text, answer, context, False, exact, advice, size, certain, alone)


def _advice(over: int, answer: int, pictures: list[Picture], size: tuple[int, int] | None, end: str) -> str:
    ways = []
    if size is not None:
        ways.append(f"shrink {pictures[-1].name} to {size[0]}×{size[1]}")
    if answer > over:
        ways.append(f"lower max tokens to {answer - over}")
    ways.append(end if not ways else f"or {end}")
    return f"{over} tokens over the context: {', '.join(ways)}"


def _least(messages: Sequence[Message]) -> int:
    return sum(len(m.text.encode("utf-8", "replace")) // LONGEST_TOKEN for m in messages)


def _estimated(messages: Sequence[Message]) -> int:
    return sum(8 + -(-len(m.text.encode("utf-8", "replace")) // BYTES_PER_TOKEN) for m in messages)
