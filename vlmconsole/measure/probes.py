"""Single requests asked before a measurement: how many tokens a prompt has, how long one answer takes alone."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from vlmconsole.engines.http import open_client, request
from vlmconsole.engines.profile import ServerProfile
from vlmconsole.errors import LabError
from vlmconsole.measure.inputs import NOT_COUNTED, WITHOUT, Fitted, InputRecipe, fit
from vlmconsole.streams.stream import StreamParser

PATIENCE_S = 300.0  # for one answer
ALONE = 2  # requests that tell how long an answer takes


async def fit_to(profile: ServerProfile, recipe: InputRecipe, wanted: int) -> Fitted:
    """Return the filler with which a prompt of `recipe` has `wanted` tokens, as the server counts. Raises LabError."""
    loop = asyncio.get_running_loop()
    async with open_client(profile, PATIENCE_S) as client:

        async def ask(words: int, probe: int) -> int | str:
            trial = InputRecipe(f"{recipe.cell}/probe", recipe.request, recipe.image, words)
            return await _count(client, profile, {**trial.request, "messages": trial.messages(probe)})

        def count(words: int, probe: int) -> int | str:
            return asyncio.run_coroutine_threadsafe(ask(words, probe), loop).result()

        return await asyncio.to_thread(fit, count, wanted)


def prompt_tokens(profile: ServerProfile, body: dict[str, Any]) -> int:
    """Return how many tokens the server counts in the prompt of `body`. Raises LabError where it does not count."""

    async def ask() -> int | str:
        async with open_client(profile, PATIENCE_S) as client:
            return await _count(client, profile, body)

    tokens = asyncio.run(ask())
    if isinstance(tokens, str):
        raise LabError(NOT_COUNTED.format(tokens), WITHOUT, code="prompt-uncounted")
    return tokens


async def _count(client: Any, profile: ServerProfile, body: dict[str, Any]) -> int | str:
    """The prompt tokens of one request with the shortest answer, or why the server would not take it."""
    body = {**body, "max_tokens": 1}
    body.pop("min_tokens", None)
    answer = await request(client, profile, "/v1/chat/completions", "POST", body)
    stream = StreamParser()
    stream.feed(answer.content, 0.0)
    stream.finish(0.0)
    tokens = stream.result.usage.prompt_tokens
    if answer.status_code == 200 and tokens is not None:
        return tokens
    reason = stream.result.error or "its usage holds no prompt tokens"
    if answer.status_code in (401, 403, 404, 429):  # nothing that a shorter prompt would change
        raise LabError(NOT_COUNTED.format(reason), WITHOUT)
    return reason


def seconds_alone(profile: ServerProfile, bodies: list[dict[str, Any]]) -> float:
    """Return how long the fastest of `bodies` took, one asked after the other, seconds. Raises LabError for a
    failure.
    """

    async def ask() -> float:
        taken: list[float] = []
        async with open_client(profile, PATIENCE_S) as client:
            for body in bodies:
                begun = time.monotonic()
                answer = await request(client, profile, "/v1/chat/completions", "POST", body)
                if answer.status_code == 200:
                    taken.append(time.monotonic() - begun)
                    continue
                raise LabError(f"The server answered {answer.status_code} to the first request.", code="server-refused")
        return min(taken)

    return asyncio.run(ask())
