"""vLLM: settings read back, cache flush, adapters."""

from __future__ import annotations

from typing import Any

import httpx

from vlmconsole.engines.effective import TOKEN_SAMPLING, EffectiveSettings, Flushed, model_ids, names_of, text, whole
from vlmconsole.engines.http import EngineError, get_json, http_error, parse_object, request
from vlmconsole.engines.openai import make_ready as make_ready
from vlmconsole.engines.profile import ServerProfile

READY_PATH = "/v1/models"
EXTRAS = TOKEN_SAMPLING | {"cache_salt"}
PHASES = (
    ("Starting to load model", "loading the model"),
    ("Loading weights took", "allocating the KV cache"),
    ("Capturing CUDA graph", "capturing CUDA graphs"),
)


async def readback(client: httpx.AsyncClient, profile: ServerProfile) -> EffectiveSettings:
    """What a plain vLLM tells: version, models, context. Its start-up flags are not served without its dev mode."""
    models = model_ids(await get_json(client, profile, "/v1/models"))
    try:
        version = text((await get_json(client, profile, "/version")).get("version"))
    except EngineError:
        version = None
    base = [m for m in models if not m.get("parent")]
    return EffectiveSettings(
        engine="vllm",
        listed=names_of(models),
        version=version,
        model=text(base[0]["id"]) if base else None,
        model_path=text(base[0].get("root")) if base else None,
        adapters=tuple(m["id"] for m in models if m.get("parent")),
        context=whole(base[0].get("max_model_len")) if base else None,
        values={"max-model-len": base[0].get("max_model_len")} if base else {},
        raw={"models": models},
        notes=["vLLM does not serve its running limit, precision or cache switch"],
    )


async def flush(client: httpx.AsyncClient, profile: ServerProfile) -> Flushed:
    """Resets the prefix cache. A refusal comes with status 200: only the body counts."""
    response = await request(client, profile, "/reset_prefix_cache", "POST")
    if response.status_code == 404:
        return Flushed(False, "not flushed: start vLLM with VLLM_SERVER_DEV_MODE=1 for /reset_prefix_cache")
    if response.status_code != 200:
        return Flushed(False, "not flushed: " + http_error(profile, response.status_code, response.content))
    said = parse_object(response.content)
    if said is not None and said.get("success") is True:
        return Flushed(True, "cache flushed")
    if said is not None and said.get("success") is False:
        return Flushed(False, "not flushed: a request is running")
    return Flushed(False, "not known: the server did not say whether the reset succeeded")


def select_adapter(body: dict[str, Any], served: str, adapter: str | None) -> None:
    """vLLM serves each adapter under its own model name."""
    if adapter:
        body["model"] = adapter
