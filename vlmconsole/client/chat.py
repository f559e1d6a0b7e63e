"""Asking one question: streamed, timed, cancellable, with proof of what the server saw.

Before the clock starts the connection is open and the request's bytes (pictures included) are ready. Nothing that is
kept holds a key or a picture's bytes.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, Self

import httpx

from vlmconsole.client.answer import Answer, conditions_of
from vlmconsole.client.sight import LOCAL, PROBE, Budget, TextTokens, budget, look
from vlmconsole.engines.adapter_choice import SelectedAdapter, selected
from vlmconsole.engines.effective import EffectiveSettings
from vlmconsole.engines.http import (
    EngineError,
    connection_error,
    first_choice,
    http_error,
    open_client,
    request,
    start_of_body,
)
from vlmconsole.engines.profile import ServerProfile, redact
from vlmconsole.engines.readback import readback, served_model
from vlmconsole.engines.registry import find_engine
from vlmconsole.engines.served_model import picture_settings, prompt_facts
from vlmconsole.models.messages import Message, to_record, to_request
from vlmconsole.models.prompt import LONG, Counter, counted, text_counter
from vlmconsole.streams.ending import remarks
from vlmconsole.streams.head import head_fault
from vlmconsole.streams.stream import Delta, StreamParser, StreamResult
from vlmconsole.streams.timing import timing

MAX_TOKENS = 1024
"""Ceiling of an answer where nothing else is said: enough to describe a photo."""
LEAST_TOKENS = 256
"""To which that ceiling is lowered at most, by a context that is nearly full."""
NOT_COUNTED = TextTokens(None, "none")
OnDelta = Callable[[Delta], None]
SILENCE_S = 600.0
"""Longest wait for the next line of an answer. A queued request may be silent for long; cancelling is the user's. Bytes
that never end their line do not count: a body may drip for ever."""
LONGEST_S = 4 * 3600.0
"""Longest answer, seconds."""


class ChatClient:
    """Questions to one server over one kept connection. Use as `async with`, or call `aclose`.

    profile: with the address and, where known, the model name in force (`Ready.profile`). settings: read by a caller
    who watches over them; without, they are read anew for each answer, since a server may be restarted with others.
    """

    def __init__(self, profile: ServerProfile, settings: EffectiveSettings | None = None) -> None:
        self.profile = profile
        self.settings = settings
        self.model = ""
        self._http: httpx.AsyncClient | None = None
        self._probes: dict[str, int] = {}
        self.prompt: dict[str, str] = {}
        self._warming = asyncio.Lock()
        self._watched, self._silent, self._stale = settings is not None, False, ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def prepare(self) -> None:
        """Reads the server's settings and model name back, once. Raises EngineError or ProfileError."""
        http = self._client()
        if self.settings is None:
            try:
                self.settings = await readback(self.profile, http)
            except EngineError:
                if not self.profile.served_model:
                    raise
                # Some servers answer chat and nothing else; the profile names the model, so that is enough.
                self._silent = True
                self.settings = EffectiveSettings(engine=self.profile.engine, model=self.profile.served_model)
        if not self.model:
            self.model = await served_model(self.profile, http)
            self.prompt = await asyncio.to_thread(prompt_facts, self.profile, self.settings)

    async def refresh(self) -> str:
        """Read settings and model name as they are in force now; "" or why they are still those of before."""
        before = self.settings
        if before is None or self._watched or self._silent:
            await self.prepare()
            return ""
        try:
            now = await readback(self.profile, self._client())
        except EngineError as error:
            return f"settings from an earlier reading (reading them again failed: {error})"
        self.settings = now
        if (now.model, now.model_path, now.version) != (before.model, before.model_path, before.version):
            self.model = await served_model(self.profile, self._client(), now)
            self.prompt = await asyncio.to_thread(prompt_facts, self.profile, now)
        return ""

    async def budget(self, messages: Sequence[Message], max_tokens: int, *, chosen: bool = True) -> Budget:
        """Tokens of the question against the context, before it is sent. chosen: False where `max_tokens` is only the
        usual ceiling: then `answer` of the budget is what the context leaves of it.
        """
        context = (self.settings.context if self.settings else None) or self.profile.context
        text = await counted(await self._counter(), messages, context or LONG)
        lowest = 0 if chosen else LEAST_TOKENS
        pictures = picture_settings(self.profile, self.settings)
        return budget(messages, max_tokens, context, pictures, text.exact, text.part, lowest)

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int = MAX_TOKENS,
        temperature: float = 0.0,
        adapter: str | SelectedAdapter | None = None,
        extra: dict[str, Any] | None = None,
        on_delta: OnDelta | None = None,
        on_sent: Callable[[float], None] | None = None,
    ) -> Answer:
        """Sends the conversation and streams the answer; on_delta is called with each piece as it comes, and
        on_sent with the moment (clock of `Delta.at`) at which the request's own time begins.

        Failures of the server or the line are in the answer (`ended`, `error`), with the text up to there. When the
        task is cancelled, the socket is closed, which ends the work on the server, and the partial answer is
        returned with ended = "cancelled". Raises EngineError for a request that this engine cannot honour.
        """
        chosen, result = selected(adapter), StreamResult()
        record: dict[str, Any] = {}
        try:
            self._stale = await self.refresh()
        except EngineError as error:
            return self._answer(messages, _failed(result, error), NOT_COUNTED, record, chosen)
        except asyncio.CancelledError:
            _uncancel()
            result.ended = "cancelled"
            return self._answer(messages, result, NOT_COUNTED, record, chosen)
        body = self._body(max_tokens, temperature, chosen, extra or {})
        record = {**body, "messages": to_record(messages)}
        payload = json.dumps({**body, "messages": to_request(messages)}).encode()
        result = await self._stream(payload, chosen, on_delta, on_sent)
        text = NOT_COUNTED if result.ended == "cancelled" else await self._text_tokens(messages, result, chosen)
        answer = self._answer(messages, result, text, record, chosen)
        return replace(answer, body_sha256=sha256(payload).hexdigest())

    async def glance(
        self, messages: Sequence[Message], adapter: SelectedAdapter | None, max_tokens: int
    ) -> tuple[str, tuple[float, ...]]:
        """Return a greedy answer that is not measured, and its tokens' log-probabilities (empty: not told).

        Raises EngineError when there is no answer.
        """
        await self.prepare()
        await self._warm(adapter)
        body = self._body(max_tokens, 0.0, adapter, {})
        body |= {"stream": False, "logprobs": True, "messages": to_request(messages)}
        del body["stream_options"]
        response = await request(self._client(), self.profile, "/v1/chat/completions", "POST", body, SILENCE_S)
        if response.status_code != 200:
            raise EngineError(http_error(self.profile, response.status_code, response.content), response.status_code)
        return first_choice(response.content)

    def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            self._http = open_client(self.profile, 10.0)
        return self._http

    async def _warm(self, adapter: SelectedAdapter | None) -> None:
        """Opens the connection and has the adapter loaded before the clock starts. Servers close an idle connection
        within seconds, so always."""
        async with self._warming:  # questions asked together have it loaded once
            rules = find_engine(self.profile.engine).rules_for(self.settings)
            await rules.make_ready(self._client(), self.profile, self.model, adapter)

    def _body(
        self,
        max_tokens: int,
        temperature: float,
        adapter: SelectedAdapter | None,
        extra: dict[str, Any],
    ) -> dict[str, Any]:
        engine = find_engine(self.profile.engine)
        unknown = sorted(set(extra) - engine.request_fields)
        if unknown:
            known = ", ".join(sorted(engine.request_fields))
            raise EngineError(
                f"{engine.label} does not support {', '.join(unknown)}; supported: {known}", code="field-unknown"
            )
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [],
            "max_tokens": max_tokens,
            "temperature": temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            **extra,
        }
        engine.rules_for(self.settings).select_adapter(body, self.model, adapter.selector if adapter else None)
        return body

    async def _stream(
        self,
        payload: bytes,
        adapter: SelectedAdapter | None,
        on_delta: OnDelta | None = None,
        on_sent: Callable[[float], None] | None = None,
    ) -> StreamResult:
        http = self._client()
        timeout = httpx.Timeout(SILENCE_S, connect=10.0)
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        url = self.profile.url("/v1/chat/completions")
        outgoing = http.build_request("POST", url, content=payload, headers=headers, timeout=timeout)
        parser = StreamParser()
        response: httpx.Response | None = None
        try:
            await self._warm(adapter)
            parser.result.stamps.sent = sent = time.monotonic()
            if on_sent is not None:
                on_sent(sent)
            try:
                async with asyncio.timeout(SILENCE_S):  # a head may drip, or be interim for ever
                    response = await http.send(outgoing, stream=True)
            except TimeoutError:
                raise EngineError(f"{self.profile.called} sent no answer within {SILENCE_S:g} s") from None
            status = response.status_code
            if wrong := head_fault(status, dict(response.headers)):
                message = f"{self.profile.called} answered {wrong}"
                return _failed(parser.result, EngineError(message, status if status >= 300 else None))
            if status != 200:
                page = await start_of_body(response)
                return _failed(parser.result, EngineError(http_error(self.profile, status, page), status))
            lines, heard = 0, sent
            async for data in response.aiter_raw():
                now = time.monotonic()
                _tell(parser.feed(data, now), on_delta)
                if parser.lines > lines:
                    lines, heard = parser.lines, now
                if now - heard > SILENCE_S:
                    parser.stop(f"{self.profile.called} sent bytes for {SILENCE_S:g} s but no complete line")
                elif now - sent > LONGEST_S:
                    parser.stop(f"{self.profile.called} was still answering after {LONGEST_S / 3600:g} h")
                if parser.full:
                    break
            _tell(parser.finish(time.monotonic()), on_delta)
        except asyncio.CancelledError:
            parser.finish(time.monotonic(), cancelled=True)
            _uncancel()
        except EngineError as error:
            return _failed(parser.result, error)
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            parser.finish(time.monotonic())
            result = parser.result
            begun = bool(result.text or result.reasoning)
            # The server's own words on what went wrong say more than that it closed the connection after them.
            if result.ended != "done" and not (result.error and result.events):
                result.error = connection_error(self.profile, error)
                result.ended = "cut" if begun else "error"
                if begun:
                    result.error = f"connection lost: {result.error}"
        finally:
            if response is not None:
                await _close(response)
        result = parser.result
        if result.ended == "cut" and result.error is None:
            how = "without [DONE]" if result.text or result.reasoning else "before any answer"
            lost = f" ({result.loss})" if result.loss else ""
            result.error = f"{self.profile.called} closed the connection {how}{lost}"
        if result.error:
            result.error = redact(result.error)
        return result

    async def _counter(self) -> Counter | None:
        folder = self.profile.model_dir()
        variables = find_engine(self.profile.engine).template_variables
        return await asyncio.to_thread(text_counter, folder, variables) if folder is not None else None

    async def _text_tokens(
        self, messages: Sequence[Message], result: StreamResult, adapter: SelectedAdapter | None
    ) -> TextTokens:
        if not any(m.pictures for m in messages):
            return TextTokens(None, "none")
        text = await counted(await self._counter(), messages)
        if text.exact is not None:
            return TextTokens(text.exact, LOCAL)
        if result.usage.image_tokens is not None or result.usage.prompt_tokens is None:
            return TextTokens(None, "none", text.why)
        probed = await self._probe(messages, adapter)
        return replace(probed, why="; ".join(filter(None, (text.why, probed.why))))

    async def _probe(self, messages: Sequence[Message], adapter: SelectedAdapter | None) -> TextTokens:
        """The prompt tokens of the same conversation without its pictures, from a request for one token."""
        if any(m.places for m in messages):  # what comes before and after an image would meet, and be other tokens
            return TextTokens(None, "none", "an image inside the text cannot be told from a text-only probe")
        bare = [Message(m.role, m.text) for m in messages]
        key = sha256(json.dumps([self.profile.base_url, self.model, to_record(bare)]).encode()).hexdigest()
        if key not in self._probes:
            # With the same adapter: the count is the same, and some servers would load the base for it.
            body = {**self._body(1, 0.0, adapter, {}), "messages": to_request(bare)}
            result = await self._stream(json.dumps(body).encode(), adapter)
            if result.ended == "cancelled" or result.usage.prompt_tokens is None:
                return TextTokens(None, "none", f"the text-only probe returned no count{_because(result.error)}")
            self._probes[key] = result.usage.prompt_tokens
        wrapped = self.profile.picture_wrapper_tokens * sum(len(m.pictures) for m in messages)
        return TextTokens(self._probes[key] + wrapped, PROBE)

    def _answer(
        self,
        messages: Sequence[Message],
        result: StreamResult,
        text: TextTokens,
        record: dict[str, Any],
        adapter: SelectedAdapter | None,
    ) -> Answer:
        settings = self.settings or EffectiveSettings(engine=self.profile.engine)
        cached, notes = result.usage.cached_tokens, [*settings.notes, *(adapter.notes if adapter else ())]
        notes += [self._stale] if self._stale else []
        if text.why and text.count is not None:
            notes.append(text.why)  # counted by the server's help all the same, and this is why not here
        if cached is None and settings.omitted_cached_is_zero and result.ended == "done" and result.usage.events:
            cached = 0
            notes.append(settings.cached_rule)
        sights = look(messages, result.usage, text, picture_settings(self.profile, settings))
        asked = str(record.get("model") or "")
        noted = remarks(
            result,
            max_tokens=record.get("max_tokens"),
            asked=asked,
            # An adapter's name is none that every server lists.
            listed=settings.listed if asked == self.model else None,
        )
        notes += [remark.text for remark in noted if remark.code in ("model", "models", "unlisted")]
        return Answer(
            result=result,
            timing=timing(result),
            vision=sights,
            conditions=conditions_of(
                self.profile, settings, self.model, result, sights, record, adapter, tuple(notes), self.prompt
            ),
            request=record,
            cached_tokens=cached,
            remarks=noted,
        )


def _failed(result: StreamResult, error: EngineError) -> StreamResult:
    result.error, result.error_code, result.ended = redact(str(error)), error.status, "error"
    return result


def _tell(deltas: list[Delta], on_delta: OnDelta | None) -> None:
    if on_delta is not None:
        for delta in deltas:
            on_delta(delta)


async def _close(response: httpx.Response) -> None:
    """Closes the socket of an unfinished answer even while the task is being cancelled."""
    await asyncio.shield(response.aclose())


def _uncancel() -> None:
    """The cancellation was answered with a partial result, so the task goes on."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


def _because(error: str | None) -> str:
    return f": {error}" if error else ""
