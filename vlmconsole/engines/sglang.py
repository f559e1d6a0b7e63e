"""SGLang 0.5.x: settings read back, cache flush, adapters, and when an omitted cached-token count means zero.

0.5.23 was recorded; what is said about 0.5.5 (the lab's pin) was read in its source and is tested on made-up answers.
"""

from __future__ import annotations

import re
from typing import Any

import httpx

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
from vlmconsole.engines.http import EngineError, get_json, http_error, parse_object, request
from vlmconsole.engines.profile import ServerProfile
from vlmconsole.engines.sglang_settings import kv_dtype_of, kv_tokens_of, ranks_of, running_limit_of, settings_of

READY_PATH = "/v1/models"
"""Not /health: that one generates a token each time."""
HEALTH_PATH = "/health"
"""503 until it has warmed up."""
EXTRAS = TOKEN_SAMPLING | {"regex", "rid"}
PHASES = (
    ("server_args=", "starting python"),
    ("Load weight begin", "loading the model"),
    ("KV Cache is allocated", "allocating the KV cache"),
    ("Capture cuda graph", "capturing CUDA graphs"),
    ("Application startup complete", "warming up"),
)


async def readback(client: httpx.AsyncClient, profile: ServerProfile) -> EffectiveSettings:
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


def without_keys(value: Any) -> Any:
    """What it tells without the keys that it tells too (it repeats all its arguments, at more than one depth)."""
    if isinstance(value, dict):
        return {name: without_keys(inner) for name, inner in value.items() if not str(name).endswith("api_key")}
    return [without_keys(inner) for inner in value] if isinstance(value, list) else value


def from_server_info(info: dict[str, Any]) -> EffectiveSettings:
    """The settings in one server-info answer; no value is made up for a missing key."""
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
    """Whether an omitted cached-token count means zero, and why. Three things must be verified first."""
    if not settings.version or not re.match(r"0\.5\.\d", settings.version):
        return False, f"SGLang {settings.version or '(version unknown)'}: not known to omit zero; omission is unknown"
    if settings.cache_report is not True:
        return False, "the cache report is off (--enable-cache-report): cached tokens are unknown"
    if settings.prefix_cache is None:
        return False, "the radix-cache switch could not be read: omission is unknown"
    switch = "on" if settings.prefix_cache else "off"
    return True, f"SGLang {settings.version}, cache report on, radix cache {switch}: omission means zero, verified"


async def flush(client: httpx.AsyncClient, profile: ServerProfile) -> Flushed:
    """Empties the radix cache. The body is the same for success and refusal: only the status counts."""
    response = await request(client, profile, "/flush_cache", "POST")
    if response.status_code == 200:
        return Flushed(True, "cache flushed")
    if response.status_code == 400:
        return Flushed(False, "not flushed: a request is running, waiting or only just done")
    return Flushed(False, f"not flushed: the server answered {response.status_code}")


def select_adapter(body: dict[str, Any], served: str, adapter: str | None) -> None:
    """The adapter by `served:NAME`; a bare NAME as model would silently be answered by the base."""
    if adapter:
        body["model"] = f"{served}:{adapter}"


async def make_ready(
    client: httpx.AsyncClient, profile: ServerProfile, served: str, adapter: SelectedAdapter | None
) -> None:
    """Opens the connection, and loads an adapter that lies in a folder of the server's machine and is not loaded yet.

    Raises EngineError with what the server said (most often that it runs without --enable-lora).
    """
    response = await request(client, profile, "/v1/models")
    if adapter is None or adapter.folder is None:
        return
    if any(m["id"] == adapter.selector for m in model_ids(parse_object(response.content) or {})):
        return
    body = {"lora_name": adapter.selector, "lora_path": str(adapter.folder)}
    response = await request(client, profile, "/load_lora_adapter", "POST", body, timeout_s=600.0)
    said = parse_object(response.content) or {}
    if response.status_code != 200 or said.get("success") is False:
        why = text(said.get("error_message")) or http_error(profile, response.status_code, response.content)
        how = "; the server must run with --enable-lora" if response.status_code == 404 or "enable" in why else ""
        raise EngineError(f"adapter {adapter.name} could not be loaded: {why}{how}", code="adapter-unloaded")
