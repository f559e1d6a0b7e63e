"""SGLang 0.5.x: settings read back, cache flush, adapters, metrics, and when an omitted cached-token count means zero.

0.5.23 was recorded; what is said about 0.5.5 (the lab's pin) was read in its source and is tested on made-up answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx

from vlmconsole.engines import sglang_server
from vlmconsole.engines.adapter_choice import SelectedAdapter
from vlmconsole.engines.effective import (
    TOKEN_SAMPLING,
    EffectiveSettings,
    Flushed,
    model_ids,
    names_of,
    text,
    truth,
    whole,
)
from vlmconsole.engines.engine import Engine
from vlmconsole.engines.http import EngineError, get_json, http_error, parse_object, request
from vlmconsole.engines.metrics import EngineMetric, MetricTable
from vlmconsole.engines.profile import ServerProfile
from vlmconsole.engines.sglang_settings import kv_dtype_of, kv_tokens_of, ranks_of, running_limit_of, settings_of

_START = ("-m", "sglang.launch_server")


class SGLang(Engine):
    """Started by its own launch line, or elsewhere."""

    name = "sglang"
    label = "SGLang"
    package = "sglang"
    key_variable = sglang_server.KEY_VARIABLE
    limit_flag = "--max-running-requests"
    cache_flags = ("", "--disable-radix-cache")
    phases = (
        ("server_args=", "starting python"),
        ("Load weight begin", "loading the model"),
        ("KV Cache is allocated", "allocating the KV cache"),
        ("Capture cuda graph", "capturing CUDA graphs"),
        ("Application startup complete", "warming up"),
    )
    warm_path = "/health"  # generates a token each time, so it is not asked whether the server is up
    request_fields = TOKEN_SAMPLING | {"regex", "rid"}
    adapter_rule = "by name"
    picture_caches = ("enable_prefix_mm_cache", "enable_mm_global_cache", "mm_preprocess_cache_size_mb")
    metrics = MetricTable(
        "sglang",
        {
            "running": EngineMetric(("sglang:num_running_reqs",), "gauge"),
            "queued": EngineMetric(("sglang:num_queue_reqs",), "gauge"),
            "kv": EngineMetric(("sglang:token_usage",), "gauge", "max"),
            "kv_tokens": EngineMetric(("sglang:num_used_tokens",), "gauge"),
            "kv_capacity": EngineMetric(("sglang:max_total_num_tokens",), "gauge"),
            "kv_used": EngineMetric(("sglang:kv_used_tokens",), "gauge"),
            "kv_cached": EngineMetric(("sglang:kv_evictable_tokens",), "gauge"),
            "kv_free": EngineMetric(("sglang:kv_available_tokens",), "gauge"),
            "gauge_throughput": EngineMetric(("sglang:gen_throughput",), "gauge"),
            "prompt_tokens": EngineMetric(("sglang:prompt_tokens_total",), "counter"),
            "output_tokens": EngineMetric(("sglang:generation_tokens_total",), "counter"),
            # Counted as they are made; the one above counts the tokens of requests that ended.
            "decode_tokens": EngineMetric(("sglang:realtime_tokens_total",), "counter", labels=(("mode", "decode"),)),
            "cached_tokens": EngineMetric(("sglang:cached_tokens_total",), "counter"),
            "requests": EngineMetric(("sglang:num_requests_total",), "counter"),
            "ttft": EngineMetric(("sglang:time_to_first_token_seconds",), "histogram"),
            "tpot": EngineMetric(
                ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"), "histogram"
            ),
            "queue_time": EngineMetric(("sglang:queue_time_seconds",), "histogram"),
        },
        counted="tokens are counted when a request ends",
        at_end=True,
        lacking="start it with --enable-metrics",
        load_paths=("/v1/loads?include=core", "/get_load"),
        written_together=("running", "queued", "kv", "kv_tokens", "gauge_throughput"),
        stale_why="SGLang writes this gauge every 40 decode steps or after 30 s idle",
    )

    def takes_key(self, words: Sequence[str]) -> bool:
        """It takes its key as a flag only: its own start line is run by our wrapper, another one is left as it is."""
        return super().takes_key(words) and tuple(words[1:3]) == _START

    def keyed(self, words: Sequence[str], *, far: bool = False) -> list[str]:
        """Return its start line through the wrapper that reads the key from the environment; elsewhere the wrapper's
        text.
        """
        if tuple(words[1:3]) != _START:
            return list(words)
        source = Path(sglang_server.__file__)
        wrapper = ["-c", source.read_text("utf-8")] if far else [str(source)]
        return [words[0], *wrapper, *words[3:]]

    async def readback(self, client: httpx.AsyncClient, profile: ServerProfile) -> EffectiveSettings:
        """Effective settings from /server_info (newer) or /get_server_info (0.5.5). Raises EngineError."""
        try:
            info = await get_json(client, profile, "/server_info")
        except EngineError as error:
            if error.status not in (404, 405):
                raise
            info = await get_json(client, profile, "/get_server_info")
        models = model_ids(await get_json(client, profile, "/v1/models"))
        settings = from_server_info(without_keys(info))
        base = [m for m in models if not m.get("parent")]
        settings.listed = names_of(models)
        settings.adapters = tuple(m["id"] for m in models if m.get("parent"))
        settings.model = text(base[0]["id"]) if base else settings.model
        settings.context = settings.context or (whole(base[0].get("max_model_len")) if base else None)
        return settings

    async def flush(self, client: httpx.AsyncClient, profile: ServerProfile) -> Flushed:
        """Empties the radix cache. The body is the same for success and refusal: only the status counts."""
        response = await request(client, profile, "/flush_cache", "POST")
        if response.status_code == 200:
            return Flushed(True, "cache flushed")
        if response.status_code == 400:
            return Flushed(False, "not flushed: a request is running, waiting or only just done")
        return Flushed(False, f"not flushed: the server answered {response.status_code}")

    def select_adapter(self, body: dict[str, Any], served: str, adapter: str | None) -> None:
        """The adapter by `served:NAME`; a bare NAME as model would silently be answered by the base."""
        if adapter:
            body["model"] = f"{served}:{adapter}"

    async def make_ready(
        self, client: httpx.AsyncClient, profile: ServerProfile, served: str, adapter: SelectedAdapter | None
    ) -> None:
        """Opens the connection, and loads an adapter that lies in a folder of the server's machine unless it has it.

        Raises EngineError with what the server said (most often that it runs without --enable-lora).
        """
        response = await request(client, profile, "/v1/models")
        if adapter is None or adapter.folder is None:
            return
        if any(m["id"] == adapter.selector for m in model_ids(parse_object(response.content) or {})):
            return
        body = {"lora_name": adapter.selector, "lora_path": str(adapter.folder)}
        response = await request(client, profile, "/load_lora_adapter", "POST", body, timeout_s=600.0)
        reply = parse_object(response.content) or {}
        if response.status_code != 200 or reply.get("success") is False:
            why = text(reply.get("error_message")) or http_error(profile, response.status_code, response.content)
            how = "; the server must run with --enable-lora" if response.status_code == 404 or "enable" in why else ""
            raise EngineError(f"adapter {adapter.name} could not be loaded: {why}{how}", code="adapter-unloaded")

    def block_size(self, settings: EffectiveSettings, fetch: Callable[[str], str]) -> int | None:
        """Return the page size of its server info."""
        return whole(settings.raw.get("server_info", {}).get("page_size"))


def without_keys(value: Any) -> Any:
    """Return what it tells without the keys that it tells too (it repeats all its arguments, at more than one
    depth).
    """
    if isinstance(value, dict):
        return {name: without_keys(inner) for name, inner in value.items() if not str(name).endswith("api_key")}
    return [without_keys(inner) for inner in value] if isinstance(value, list) else value


def from_server_info(info: dict[str, Any]) -> EffectiveSettings:
    """Return the settings in one server-info answer; no value is made up for a missing key."""
    off = truth(info.get("disable_radix_cache"))
    settings = EffectiveSettings(
        engine="sglang",
        version=text(info.get("version")),
        model=text(info.get("served_model_name")),
        model_path=text(info.get("model_path")),
        running_limit=running_limit_of(info),
        context=whole(info.get("context_length")),
        kv_tokens=kv_tokens_of(info),
        kv_dtype=kv_dtype_of(info),
        ranks=ranks_of(info),
        precision=text(info.get("dtype")),
        prefix_cache=None if off is None else not off,
        cache_report=truth(info.get("enable_cache_report")),
        values=settings_of(info),
        raw={"server_info": info},
    )
    if settings.ranks > 1:
        settings.notes.append(f"{settings.ranks} data-parallel ranks: B and KV capacity are those of all together")
    settings.omitted_cached_is_zero, settings.cached_rule = omission_rule(settings)
    return settings


def omission_rule(settings: EffectiveSettings) -> tuple[bool, str]:
    """Return whether an omitted cached-token count means zero, and why. Three things must be verified first."""
    if not settings.version or not re.match(r"0\.5\.\d", settings.version):
        return False, f"SGLang {settings.version or '(version unknown)'}: not known to omit zero; omission is unknown"
    if settings.cache_report is not True:
        return False, "the cache report is off (--enable-cache-report): cached tokens are unknown"
    if settings.prefix_cache is None:
        return False, "the radix-cache switch could not be read: omission is unknown"
    switch = "on" if settings.prefix_cache else "off"
    return True, f"SGLang {settings.version}, cache report on, radix cache {switch}: omission means zero, verified"


ENGINE = SGLang()
