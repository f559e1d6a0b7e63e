"""Asking a server that answers, whatever its engine: its settings, the name of its model, a flush of its cache."""

from __future__ import annotations

import asyncio

import httpx

from vlmconsole.engines.adapter_choice import UNKNOWN, SelectedAdapter
from vlmconsole.engines.effective import EffectiveSettings, Flushed
from vlmconsole.engines.http import EngineError, open_client
from vlmconsole.engines.profile import GIVEN, ServerProfile
from vlmconsole.engines.registry import find_engine
from vlmconsole.engines.served_model import add_quantization


async def readback(profile: ServerProfile, client: httpx.AsyncClient | None = None) -> EffectiveSettings:
    """Return the effective settings of the server at profile.base_url. Raises EngineError or ProfileError."""
    if not profile.base_url:
        raise EngineError(
            f"server {profile.name} is not running (vlmconsole servers start {profile.name})", code="server-stopped"
        )
    if client is None:
        async with open_client(profile) as own:
            return await readback(profile, own)
    settings = await find_engine(profile.engine).readback(client, profile)
    await asyncio.to_thread(add_quantization, profile, settings)
    return settings


async def flush(profile: ServerProfile) -> Flushed:
    """Empty the server's prefix cache, and say whether it really did."""
    async with open_client(profile, 30.0) as client:
        return await find_engine(profile.engine).flush(client, profile)


async def served_model(
    profile: ServerProfile, client: httpx.AsyncClient | None = None, settings: EffectiveSettings | None = None
) -> str:
    """Return the model name to send, exactly as the server spells it, of `settings` where they were just read.

    Raises EngineError when it cannot be known.
    """
    engine = find_engine(profile.engine)
    if name := engine.own_name(profile):
        return name
    settings = settings or await readback(profile, client)
    name = settings.model or engine.name_without_model(profile)
    if not name:
        way = "name it with --model" if profile.name == GIVEN else "set served_model in its profile"
        raise EngineError(f"{profile.called} names no model; {way}")
    return name


def adapter_label(
    profile: ServerProfile, settings: EffectiveSettings | None, adapter: SelectedAdapter | None
) -> str | None:
    """Return the adapter as conditions name it; None: the base for certain, UNKNOWN where the server cannot be told."""
    if adapter is not None:
        return adapter.said
    return UNKNOWN if find_engine(profile.engine).rules_for(settings).adapter_rule == "none" else None
