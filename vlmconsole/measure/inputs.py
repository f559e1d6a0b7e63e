"""Synthetic inputs: prompts of a wanted length, pictures of a wanted size, all told apart by a salt.

Each prompt begins with its own order of the same few words. So no two prompts share a prefix that a cache
could hit, and yet all have the same number of tokens on any tokenizer that splits at spaces.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from PIL import Image

from vlmconsole.errors import LabError
from vlmconsole.measure.load import Body
from vlmconsole.models.messages import Message, to_record, to_request
from vlmconsole.vision.images import Picture, pixel_sha256

_SALT = "red blue green white black small large round flat warm cold new old high low fast"
_FILLER = "the box on the left has one more line than the box on the right and so it is wide"
SALT_WORDS, FILLER = tuple(_SALT.split()), tuple(_FILLER.split())
QUESTION = "Describe what you see and count it."
PROBES = 8  # requests spent at most on finding a length
NEAR = 0.95  # of the wanted length: below it, where longer prompts were refused, it was not reached
NOT_COUNTED = "The input length cannot be set, as the server does not count a prompt ({})."
WITHOUT = "Without input_tokens a short prompt is measured."
BLOCKS = 16  # pictures are this many coloured blocks wide and high


class InputError(LabError):
    """The wanted input cannot be made."""


def salt(cell: str, number: int) -> str:
    """Return the words that begin prompt `number` of `cell`: an order of SALT_WORDS that only these two decide."""
    words = list(SALT_WORDS)
    random.Random(f"{cell}/{number}").shuffle(words)
    return " ".join(words)


def prompt(cell: str, number: int, filler_words: int = 0) -> str:
    """Prompt `number` of `cell`: salt, as many words of filler as asked for, and a question."""
    filler = [FILLER[i % len(FILLER)] for i in range(filler_words)]
    return " ".join(["Note:", salt(cell, number), *filler, "."]) + " " + QUESTION


def picture(cell: str, number: int, width: int, height: int) -> Picture:
    """Return a picture of coloured blocks, `width` × `height` pixels, that only the cell and the number decide.

    Blocks keep the PNG small, so that its upload does not weigh; what it costs the server depends on its size only.
    """
    draw = random.Random(f"{cell}/{number}/picture")
    across, down = min(BLOCKS, width), min(BLOCKS, height)
    blocks = Image.frombytes("RGB", (across, down), draw.randbytes(across * down * 3))
    image = blocks.resize((width, height), Image.Resampling.NEAREST)
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    data = file.getvalue()
    return Picture(
        name=f"{cell}-{number}.png",
        source_path=None,
        data=data,
        mime="image/png",
        size=(width, height),
        sha256=hashlib.sha256(data).hexdigest(),
        pixel_sha256=pixel_sha256(image),
        original_size=(width, height),
    )


@dataclass(frozen=True)
class InputRecipe:
    """How the bodies of a cell are made. `request` holds every field but the messages."""

    cell: str
    request: dict[str, Any]
    image: tuple[int, int] | None = None
    filler_words: int = 0

    def message(self, number: int) -> Message:
        """Return the user's turn of request `number`; warm-ups have numbers below zero, so none repeats a measured
        one.
        """
        pictures = () if self.image is None else (picture(self.cell, number, *self.image),)
        return Message("user", prompt(self.cell, number, self.filler_words), pictures)

    def body(self, number: int) -> Body:
        """Return the bytes of request `number`, pictures encoded."""
        return Body([encode({**self.request, "messages": self.messages(number)})])

    def messages(self, number: int) -> list[dict[str, Any]]:
        """Return the messages of request `number`, its picture as a data URL."""
        return to_request([self.message(number)])

    def bodies(self, numbers: range) -> Iterator[Body]:
        """Return one body after the other, so that ten thousand never lie in memory together."""
        return (self.body(number) for number in numbers)

    def record(self, number: int) -> dict[str, Any]:
        """Request `number` as it is kept: pictures named by their hash."""
        return {**self.request, "messages": to_record([self.message(number)])}


def encode(request: dict[str, Any]) -> bytes:
    """Return a request's bytes: compact JSON, UTF-8."""
    return json.dumps(request, separators=(",", ":"), ensure_ascii=False).encode()


@dataclass(frozen=True)
class Fitted:
    """The filler found: `tokens` is what the server counted with it, `wanted` what was asked for."""

    filler_words: int
    tokens: int
    wanted: int

    @property
    def exact(self) -> bool:
        return self.tokens == self.wanted

    @property
    def remarks(self) -> list[str]:
        """What conditions note of it."""
        if self.exact:
            return []
        return [f"input: {self.wanted} tokens wanted, {self.tokens} is the nearest that the server counts"]


def fit(count: Callable[[int, int], int | str], wanted: int) -> Fitted:
    """Return the number of filler words that gives `wanted` prompt tokens.

    `count(filler words, probe number)` asks the server: tokens, or why it would not take the prompt. A guess that it
    refuses is one too long; the nearest length found is returned when none fits exactly, as where a word is two tokens.
    Raises InputError when even an empty filler is too long or refused, and when what is refused is what was asked for.
    """
    words, low = 0, 0
    high: int | None = None
    tried: dict[int, int] = {}
    refused: dict[int, str] = {}
    while len(tried) + len(refused) < PROBES and words not in tried and words not in refused:
        answer = count(words, len(tried) + len(refused))
        if isinstance(answer, str):
            refused[words] = answer
            if not tried:
                raise InputError(NOT_COUNTED.format(answer), WITHOUT, code="prompt-uncounted")
            high = words
            words = low + (words - low) // 2
            continue
        tried[words] = answer
        if answer == wanted:
            break
        if answer > wanted:
            if words == 0:
                raise InputError(
                    f"The shortest prompt of this kind has {answer} tokens; {wanted} were asked for.",
                    "Ask for more input tokens, or a smaller image.",
                    code="prompt-short",
                )
            high = words
        else:
            low = words
        words = _next(tried, wanted, low, high)
    best = min(tried, key=lambda tries: (abs(tried[tries] - wanted), tries))
    if refused and tried[best] < NEAR * wanted:
        raise InputError(
            f"A prompt of {wanted} tokens is more than the server takes ({refused[min(refused)]}).",
            f"The longest that it took had {max(tried.values())}: ask for fewer input tokens.",
            code="prompt-long",
        )
    return Fitted(best, tried[best], wanted)


def _next(tried: dict[int, int], wanted: int, low: int, high: int | None) -> int:
    """The next number of words: along the line through the two last tries, kept between what is known."""
    last, before = list(tried.items())[-1], list(tried.items())[-2] if len(tried) > 1 else None
    slope = 1.0
    if before is not None and last[0] != before[0]:
        slope = max(0.1, (last[1] - before[1]) / (last[0] - before[0]))
    guess = last[0] + round((wanted - last[1]) / slope)
    guess = max(low + 1, guess)
    return guess if high is None else max(low, min(high - 1, guess))
