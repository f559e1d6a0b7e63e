"""Any OpenAI-compatible server: what little it tells about itself."""

from __future__ import annotations

from typing import Any

import httpx

from vlmconsole.engines.adapter_choice import SelectedAdapter
from vlmconsole.engines.effective import SAMPLING, EffectiveSettings, Flushed, model_ids, names_of, text, whole
from vlmconsole.engines.http import EngineError, object_of, request
from vlmconsole.engines.profile import ServerProfile

READY_PATH = "/v1/models"
EXTRAS = SAMPLING | {"max_completion_tokens"}
PHASES: tuple[tuple[str, str], ...] = ()


async def readback(client: httpx.AsyncClient, profile: ServerProfile) -> EffectiveSettings:
    """The models of /v1/models; everything else is unknown. Raises EngineError when nothing answers."""
    response = await request(client, profile, "/v1/models")
    models = model_ids(object_of(profile, "/v1/models", response))
    return EffectiveSettings(
        engine="openai",
        listed=names_of(models),
        model=text(models[0]["id"]) if models else None,
        context=whole(models[0].get("max_model_len")) if models else None,
        raw={"models": models, "server": response.headers.get("server", "")},
        notes=["a generic server: version, precision, limits and cache are not read back"],
    )


async def flush(client: httpx.AsyncClient, profile: ServerProfile) -> Flushed:
    """A generic server has no known way to flush."""
    return Flushed(False, "not flushed: no way is known for a generic server")


def select_adapter(body: dict[str, Any], served: str, adapter: str | None) -> None:
    """Raises EngineError: there is no common way to name an adapter."""
    if adapter:
        raise EngineError(
            "a generic server has no adapters; name the model that you want instead", code="adapter-unsupported"
        )


async def make_ready(
    client: httpx.AsyncClient, profile: ServerProfile, served: str, adapter: SelectedAdapter | None
) -> None:
    """Opens the connection; adapters are there from the server's start or not at all. Raises EngineError."""
    await request(client, profile, "/v1/models")
