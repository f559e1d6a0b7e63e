"""Any OpenAI-compatible server: what little it tells about itself."""

from __future__ import annotations

import httpx

from vlmconsole.engines.effective import SAMPLING, EffectiveSettings, model_ids, names_of, text, whole
from vlmconsole.engines.engine import Engine
from vlmconsole.engines.http import object_of, request
from vlmconsole.engines.profile import ServerProfile
from vlmconsole.engines.registry import engines


class OpenAI(Engine):
    """A server of which only the address is known."""

    name = "openai"
    label = "OpenAI-compatible"
    generic = True
    request_fields = SAMPLING | {"max_completion_tokens"}

    async def readback(self, client: httpx.AsyncClient, profile: ServerProfile) -> EffectiveSettings:
        """Return the models of /v1/models; everything else is unknown. Raises EngineError when nothing answers."""
        response = await request(client, profile, "/v1/models")
        models = model_ids(object_of(profile, "/v1/models", response))
        return EffectiveSettings(
            engine=self.name,
            listed=names_of(models),
            model=text(models[0]["id"]) if models else None,
            context=whole(models[0].get("max_model_len")) if models else None,
            raw={"models": models, "server": response.headers.get("server", "")},
            notes=["a generic server: version, precision, limits and cache are not read back"],
        )

    def rules_for(self, settings: EffectiveSettings | None) -> Engine:
        """Return the engine that the server names itself as: mlx-vlm must be told "none" for an adapter, or it goes on
        with that of whoever asked before.
        """
        says = str(settings.raw.get("server", "")) if settings is not None else ""
        named = (other for other in engines() if other.server_header and says.startswith(other.server_header))
        return next(named, self)


ENGINE = OpenAI()
