"""What a server tells of its caches besides a request's usage: block size, counter, and caches of other layers."""

from __future__ import annotations

from functools import partial
from typing import Any

from vlmconsole.engines.effective import EffectiveSettings
from vlmconsole.engines.launch_lines import flags_of
from vlmconsole.engines.metrics import MetricsError
from vlmconsole.engines.profile import ServerProfile
from vlmconsole.engines.registry import find_engine
from vlmconsole.gauges.fetch import Fetcher
from vlmconsole.gauges.figures import SourceError
from vlmconsole.measure.bench import MeasuredServer

_PICTURE_VARIABLES = ("SGLANG_VLM_CACHE_SIZE_MB", "VLLM_MM_INPUT_CACHE_GIB")
OTHER_LAYER = "A vision-feature cache keeps image embeddings: another layer than the prefix cache. It proves no hit."


def block_size(server: MeasuredServer) -> int | None:
    """Tokens in the smallest part that the prefix cache shares; None where the server does not tell."""
    try:
        return find_engine(server.profile.engine).block_size(server.settings, partial(_get, server))
    except (SourceError, ValueError):
        return None


def cached_counter(server: MeasuredServer) -> int | None:
    """Return the server's count of all prompt tokens that ever came from its prefix cache; None where it has none."""
    table = find_engine(server.profile.engine).metrics
    try:
        value = table.read(_get(server, table.path)).counters.get("cached_tokens") if table is not None else None
    except (SourceError, MetricsError):
        return None
    return None if value is None else int(value)


def other_layers(profile: ServerProfile, settings: EffectiveSettings) -> list[str]:
    """Settings of vision-feature caches that are known of, as `name = value`."""
    info: dict[str, Any] = settings.raw.get("server_info", {})
    flags = flags_of(profile.launch.words if profile.launch is not None else ())
    layers = [
        f"{name} = {where[name]}"
        for name in find_engine(profile.engine).picture_caches
        for where in (info, flags)
        if where.get(name) not in (None, False)
    ]
    env = profile.launch.env if profile.launch is not None else {}
    return layers + [f"{name} = {env[name]}" for name in _PICTURE_VARIABLES if name in env]


def _get(server: MeasuredServer, path: str) -> str:
    fetcher = Fetcher.of(server.profile, deadline=10.0)
    try:
        return fetcher.get(path)
    finally:
        fetcher.close()
