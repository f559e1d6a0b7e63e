"""The model under test behind a server: greedy requests, settings read back before, between and after the sides."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from vlmconsole import __version__
from vlmconsole.client.answer import Answer
from vlmconsole.client.chat import ChatClient
from vlmconsole.engines.adapter_choice import SelectedAdapter
from vlmconsole.engines.effective import EffectiveSettings
from vlmconsole.engines.http import EngineError
from vlmconsole.engines.readback import adapter_label, readback
from vlmconsole.engines.registry import find_engine
from vlmconsole.engines.served_model import prompt_facts, serves_another
from vlmconsole.errors import LabError
from vlmconsole.evaluation.answerer import ModelAnswer, Stopping, Who
from vlmconsole.evaluation.items import Item
from vlmconsole.evaluation.resolve import ResolvedSide
from vlmconsole.measure.bench import MeasuredServer
from vlmconsole.measure.machine import hardware
from vlmconsole.runs.conditions import Conditions

CONSTANT = frozenset({"whole", "unlisted"})  # remarks that are the server's, and say nothing of one answer
UNTOLD = "adapter and weights unknown: the server is a generic one"
LOOK_S = 0.2  # seconds between two looks whether a stop is asked for


def cache_remark(settings: EffectiveSettings) -> str:
    """Return what is to be said beside an evaluation of a server with its prefix cache on; "" where it is off or not
    told.
    """
    if not settings.prefix_cache:
        return ""
    return "the prefix cache is on: an answer may differ by what was asked before it; switch it off for an evaluation"


class Served:
    """An answerer that asks a server. Raises LabError for an adapter that this server cannot use."""

    def __init__(
        self, side: ResolvedSide, server: MeasuredServer, stopping: Callable[[], bool] = lambda: False
    ) -> None:
        settings = side.settings
        self.settings, self.server, self.stopping = settings, server, stopping
        self.in_force = server.settings
        self.who, self._adapter = _who(side, server)
        self._client: ChatClient | None = None
        self._runner = asyncio.Runner()
        self.facts: dict[str, Any] = {
            "backend": "server",
            "host": platform.node(),  # the client's; the server's is known by what it tells
            "hardware": self._hardware,
            "device": self.in_force.device,
            "versions": {"vlmconsole": __version__, self.in_force.engine: self.in_force.version},
            "weights": [self.who.model_sha256 or self.in_force.model_path or server.model, self.who.identity],
            "settings": _in_force(self.in_force),
            "max_new_tokens": settings.max_new_tokens,
            "seed": settings.seed,
            "concurrency": settings.concurrency,
        }

    def ask(self, items: Sequence[Item]) -> list[ModelAnswer]:
        """Return the answers, at most `concurrency` requests at a time. A request that fails is an answer that says so.

        Raises Stopping within `LOOK_S` of a stop; closing its connection ends a request at the server too.
        """
        return self._runner.run(self._ask(items))

    async def _ask(self, items: Sequence[Item]) -> list[ModelAnswer]:
        if self._client is None:
            self._client = ChatClient(self.server.profile, self.in_force)
        client, free = self._client, asyncio.Semaphore(self.settings.concurrency)
        fields = find_engine(self.server.profile.engine).request_fields
        extra = {"seed": self.settings.seed} if "seed" in fields else None

        async def one(item: Item) -> ModelAnswer:
            async with free:
                answer = await client.ask(
                    item.example.messages(),
                    max_tokens=self.settings.max_new_tokens,
                    temperature=0.0,
                    adapter=self._adapter,
                    extra=extra,
                )
            return _said(answer)

        asked = [asyncio.ensure_future(one(item)) for item in items]
        try:
            while (await asyncio.wait(asked, timeout=LOOK_S))[1]:
                if self.stopping():
                    raise Stopping
        finally:
            for request in asked:
                request.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        return [request.result() for request in asked]

    def conditions(self) -> Conditions:
        """Return the settings as the server tells them now. Raises LabError when they are no longer those of the
        start.
        """
        try:
            in_force = self._runner.run(readback(self.server.profile))
        except EngineError as error:
            raise LabError(f"The server's settings cannot be read back: {error}") from None
        now, was = _in_force(in_force), self.facts["settings"]
        changed = [key for key in was.keys() | now.keys() if was.get(key) != now.get(key)]
        if changed:
            text = ", ".join(f"{key} {was.get(key)!r} → {now.get(key)!r}" for key in sorted(changed))
            raise LabError(f"The server's settings changed during the evaluation: {text}.")
        profile = self.server.profile
        return Conditions(
            hardware=self._hardware,
            engine=find_engine(in_force.engine).label,
            engine_version=in_force.version,
            model=self.who.model,
            model_sha256=self.who.model_sha256,
            precision=in_force.precision or profile.precision or None,
            quantization=in_force.quantization,
            **prompt_facts(profile, in_force),
            adapter=self.who.identity or adapter_label(profile, in_force, None),
            client_concurrency=self.settings.concurrency,
            running_limit=in_force.running_limit,
            cache=None if in_force.prefix_cache is None else "on" if in_force.prefix_cache else "off",
            warm_up="none: nothing is timed",
            temperature=0.0,
            seed=self.settings.seed,
            max_tokens=self.settings.max_new_tokens,
            route=profile.route,
            client=f"vlmconsole {__version__} evaluation (httpx)",
            settings=in_force.values or None,
            notes=(
                *in_force.notes,
                *filter(None, [cache_remark(in_force)]),
                *(self._adapter.notes if self._adapter is not None else ()),
            ),
        )

    @property
    def _hardware(self) -> str | None:
        profile = self.server.profile
        return profile.hardware or (hardware() if profile.route == "loopback" else None)

    def close(self) -> None:
        """Close the connection."""
        with self._runner as runner:
            if self._client is not None:
                runner.run(self._client.aclose())


@contextmanager
def served(
    side: ResolvedSide, server: MeasuredServer, stopping: Callable[[], bool] = lambda: False
) -> Iterator[Served]:
    """The side's model behind its server, for the block's time. The server itself is the caller's."""
    model = Served(side, server, stopping)
    try:
        yield model
    finally:
        model.close()


def _who(side: ResolvedSide, server: MeasuredServer) -> tuple[Who, SelectedAdapter | None]:
    """The side's model and adapter, and the adapter as this server's requests select it."""
    from vlmconsole.training.adapters.serving import select
    from vlmconsole.training.adapters.store import OTHER_MODEL, base_sha256

    unknown = adapter_label(server.profile, server.settings, None) is not None
    # What a generic server loads is its own affair: the folder that a profile names is not thereby what answers.
    other = find_engine(server.profile.engine).generic or serves_another(server.profile, server.settings)
    folder = None if other else server.profile.model_dir()
    sha = base_sha256(folder) if folder is not None else None
    model = folder.name if folder is not None else server.model
    precision = server.settings.precision
    adapter, override = side.adapter, side.settings.override
    chosen = select(adapter.name, server.profile, precision, side.places, other_base=override, find=adapter.find)
    if chosen is None:
        return Who(model, sha, label=UNTOLD if unknown else ""), None
    label = OTHER_MODEL if any(OTHER_MODEL in note for note in chosen.notes) else ""
    return Who(model, sha, chosen.name, chosen.sha256, label), chosen


def _said(answer: Answer) -> ModelAnswer:
    """An answer of which events were lost counts as a failed request: its words are not what the model said."""
    result = answer.result
    remarks = tuple(remark.code for remark in answer.remarks if remark.code not in CONSTANT)
    others = tuple(result.models) if answer.conditions.asked_model else ()
    if not answer.ok:
        why = result.error or result.loss or result.ended
        finish = "lost" if result.ended == "done" else result.ended
        return ModelAnswer(None, finish=finish, seconds=answer.timing.e2e_s, error=why, remarks=remarks, others=others)
    return ModelAnswer(
        answer=answer.text,
        finish=result.finish_reason,
        prompt_tokens=result.usage.prompt_tokens,
        output_tokens=result.usage.completion_tokens,
        seconds=None if answer.timing.e2e_s is None else round(answer.timing.e2e_s, 4),
        sight=", ".join(sight.state for sight in answer.vision) or None,
        remarks=remarks,
        others=others,
    )


def _in_force(settings: EffectiveSettings) -> dict[str, Any]:
    """Everything that the server says of itself and that may not change under an evaluation."""
    return {
        "version": settings.version,
        "running-limit": settings.running_limit,
        "prefix-cache": settings.prefix_cache,
        "precision": settings.precision,
        **settings.values,
    }
