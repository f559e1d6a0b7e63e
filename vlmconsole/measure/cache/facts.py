"""What a server tells of its caches besides a request's usage: block size, counter, and caches of other layers."""

from __future__ import annotations

import re
from typing import Any

from vlmconsole.engines.effective import EffectiveSettings, flags_of, whole
from vlmconsole.engines.profile import ServerProfile
from vlmconsole.gauges.fetch import Fetcher
from vlmconsole.gauges.figures import SourceError
from vlmconsole.gauges.mlx_metrics import read_mlx
from vlmconsole.gauges.prometheus import read_metrics
from vlmconsole.measure.bench import Server
from vlmconsole.system.bounded_http import json_value

_VLLM_BLOCK = re.compile(r'^vllm:cache_config_info\{[^}]*\bblock_size="(\d+)"', re.M)
#: settings of vision-feature and picture caches, by engine; SGLang's are in its server info
_PICTURE_SETTINGS = {
    "sglang": ("enable_prefix_mm_cache", "enable_mm_global_cache", "mm_preprocess_cache_size_mb"),
    "mlx": ("vision-cache-size",),
    "vllm": ("mm-processor-cache-gb", "disable-mm-preprocessor-cache"),
}
_PICTURE_VARIABLES = ("SGLANG_VLM_CACHE_SIZE_MB", "VLLM_MM_INPUT_CACHE_GIB")
OTHER_LAYER = "A vision-feature cache keeps picture embeddings: another layer than the prefix cache. It proves no hit."


def block_size(server: Server) -> int | None:
    """Tokens in the smallest part that the prefix cache shares; None where the server does not tell."""
    engine, settings = server.profile.engine, server.settings
    if engine == "sglang":
        return whole(settings.raw.get("server_info", {}).get("page_size"))
    try:
        if engine == "mlx":
            stats = json_value(_get(server, "/v1/cache/stats"))
            return whole(stats.get("block_size")) if isinstance(stats, dict) else None
        if engine == "vllm":
            match = _VLLM_BLOCK.search(_get(server, "/metrics"))
            return int(match[1]) if match else None
    except (SourceError, ValueError):
        return None
    return None


def cached_counter(server: Server) -> int | None:
    """The server's count of all prompt tokens that ever came from its prefix cache; None where it has none."""
    engine = server.profile.engine
    try:
        if engine == "mlx":
            counters = read_mlx(_get(server, "/v1/metrics")).scrape.counters
        elif engine in ("sglang", "vllm"):
            counters = read_metrics(_get(server, "/metrics"), engine).counters
        else:
            return None
    except SourceError:
        return None
    value = counters.get("cached_tokens")
    return None if value is None else int(value)


def other_layers(profile: ServerProfile, settings: EffectiveSettings) -> list[str]:
    """Settings of vision-feature caches that are known of, as `name = value`."""
    info: dict[str, Any] = settings.raw.get("server_info", {})
    flags: dict[str, Any] = {}
    if profile.launch is not None:
        flags = flags_of([*profile.launch.argv, *profile.launch.extra])
    layers = [
        f"{name} = {where[name]}"
        for name in _PICTURE_SETTINGS.get(profile.engine, ())
        for where in (info, flags)
        if where.get(name) not in (None, False)
    ]
    env = profile.launch.env if profile.launch is not None else {}
    return layers + [f"{name} = {env[name]}" for name in _PICTURE_VARIABLES if name in env]


def _get(server: Server, path: str) -> str:
    fetcher = Fetcher.of(server.profile, deadline=10.0)
    try:
        return fetcher.get(path)
    finally:
        fetcher.close()
