"""Prompts of a recorded trace: lengths as it has them, the same words where its hash ids are the same."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from vlmconsole.engines.profile import ServerProfile
from vlmconsole.measure.inputs import FILLER, QUESTION, SALT_WORDS, InputRecipe, encode
from vlmconsole.measure.load import Body
from vlmconsole.measure.probes import prompt_tokens
from vlmconsole.measure.trace import BLOCK_TOKENS, TraceRequest
from vlmconsole.models.messages import Message, to_record, to_request

WORDS = (*SALT_WORDS, *FILLER)
SHORT_WORDS, LONG_WORDS = 64, 512  # of the two prompts by which words are turned into tokens


@dataclass(frozen=True)
class TokenRate:
    """How a server counts such prompts: tokens = `fixed` (template, image, question) + `per_word` × words."""

    fixed: float
    per_word: float

    def words(self, tokens: float) -> int:
        """Return how many words so many tokens are, the fixed ones apart."""
        return max(0, round(tokens / self.per_word))


def block_words(cell: str, block: int | str, count: int) -> list[str]:
    """Return the first `count` words of what one hash id stands for in this cell."""
    draw = random.Random(f"{cell}/block/{block}")
    return draw.choices(WORDS, k=count)


def token_rate(profile: ServerProfile, recipe: InputRecipe) -> TokenRate:
    """Asked of the server with two prompts. Raises LabError where it does not count them."""
    counts = []
    for words in (SHORT_WORDS, LONG_WORDS):
        text = " ".join(block_words(recipe.cell, f"probe-{words}", words))
        messages = to_request([Message("user", f"{text} {QUESTION}", recipe.message(-1000 - words).pictures)])
        counts.append(prompt_tokens(profile, {**recipe.request, "messages": messages}))
    per_word = max(0.1, (counts[1] - counts[0]) / (LONG_WORDS - SHORT_WORDS))
    return TokenRate(counts[0] - per_word * SHORT_WORDS, per_word)


@dataclass(frozen=True)
class TraceInputs:
    """Bodies of a trace's requests. `usual`: tokens of an answer where the trace does not tell."""

    recipe: InputRecipe
    rate: TokenRate
    usual: int

    def output(self, request: TraceRequest) -> int:
        """Tokens that the answer should have."""
        return request.output_tokens or self.usual

    def text(self, number: int, request: TraceRequest) -> str:
        """Return the prompt: the words of its hash ids one after the other, cut to its length, then the question."""
        if request.input_tokens is None:
            return self.recipe.message(number).text
        tokens = max(0.0, request.input_tokens - self.rate.fixed)
        left, words = self.rate.words(tokens), list[str]()
        for block in request.blocks:
            words += block_words(self.recipe.cell, block, min(left, self.rate.words(BLOCK_TOKENS)))
            left = self.rate.words(tokens) - len(words)
        if left > 0:  # the trace has no hash ids here: nothing is shared
            words += block_words(self.recipe.cell, f"request-{number}", left)
        return " ".join([*words, QUESTION])

    def message(self, number: int, request: TraceRequest) -> Message:
        """Return the user's turn of request `number`, with its picture where pictures are asked for."""
        return Message("user", self.text(number, request), self.recipe.message(number).pictures)

    def fields(self, request: TraceRequest) -> dict[str, Any]:
        """Return the fields of the request but its messages, held to its own answer's length."""
        own = {"max_tokens", "min_tokens"} & self.recipe.request.keys()
        return {**self.recipe.request, **dict.fromkeys(own, self.output(request))}

    def body(self, number: int, request: TraceRequest) -> Body:
        """Return the bytes of request `number`."""
        return Body([encode({**self.fields(request), "messages": to_request([self.message(number, request)])})])

    def record(self, number: int, request: TraceRequest) -> dict[str, Any]:
        """Request `number` as it is kept: pictures named by their hash."""
        return {**self.fields(request), "messages": to_record([self.message(number, request)])}
