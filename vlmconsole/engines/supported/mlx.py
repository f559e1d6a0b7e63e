"""mlx-vlm: how it is started here, its settings read back, cache reset, adapters, and what its requests must carry."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx

from vlmconsole.engines import mlx_guard, mlx_server
from vlmconsole.engines.adapter_choice import SelectedAdapter
from vlmconsole.engines.effective import EffectiveSettings, Flushed, model_ids, text, truth, whole
from vlmconsole.engines.engine import Engine
from vlmconsole.engines.http import EngineError, get_json, http_error, parse_object, request
from vlmconsole.engines.interpreters import interpreter_path
from vlmconsole.engines.mlx_metrics import MlxMetrics
from vlmconsole.engines.profile import ProfileError, ServerProfile
from vlmconsole.models.quantization import from_json
from vlmconsole.runs.places import Places
from vlmconsole.system.bounded_http import json_value
from vlmconsole.system.reading import read_json

LOADING_S = 600.0
"""Longest wait for a model to be loaded again with another adapter."""
RUNNING_LIMIT = 4
"""The running limit B of a profile that names none."""


class Mlx(Engine):
    """Started here by our wrapper (`engines.mlx_server`), or by anybody."""

    name = "mlx"
    label = "mlx-vlm"
    package = "mlx-vlm"
    key_variable = mlx_server.KEY_VARIABLE
    writes_line = True
    limit_flag = "--max-num-seqs"
    needs_metal = True
    phases = (
        ("vlmconsole: phase importing", "starting python"),
        ("vlmconsole: phase loading", "loading the model"),
        ("Application startup complete", "ready"),
    )
    ready_path = "/health"
    server_header = "mlx_vlm"
    # `stop`, `min_tokens` and `ignore_eos` are accepted and silently ignored.
    request_fields = frozenset({"top_p", "top_k", "seed", "repetition_penalty", "response_format", "logit_bias"})
    adapter_rule = "by folder"
    template_variables = (("enable_thinking", False),)
    picture_reader = "mlx"
    picture_caches = ("vision-cache-size",)
    metrics = MlxMetrics("mlx", {}, counted="tokens are counted when a request ends", at_end=True, path="/v1/metrics")

    def words(self, profile: ServerProfile, places: Places, port: int) -> list[str]:
        """Return the profile's own words, or those of our wrapper on the loopback interface."""
        if profile.launch is not None and profile.launch.argv:
            return super().words(profile, places, port)
        folder = profile.model_dir()
        if folder is None:
            # Servers here are offline: what is not on this machine already cannot be loaded.
            way = f"; get it with: hf download {profile.model}" if profile.model.count("/") == 1 else ""
            where = profile.model or "(model is empty)"
            raise ProfileError(f"profile {profile.name}: there is no model at {where}{way}", code="model-missing")
        words = [interpreter(profile, places), "-u", mlx_server.__file__]
        words += ["--host", "127.0.0.1", "--port", str(port), "--model", str(folder)]
        words += [self.limit_flag, str(profile.running_limit or RUNNING_LIMIT), "--log-level", "INFO"]
        words += ["--trust-remote-code"] if profile.trust_remote_code else []
        return words + list(profile.launch.extra if profile.launch else ())

    def environment(self, profile: ServerProfile, places: Places) -> dict[str, str]:
        """Return what the server's environment gets on top of ours: offline, private caches, the prefix cache as asked
        for.
        """
        cache = places.cache / "mlx"
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        values = {
            "HF_HUB_OFFLINE": "1",
            "MLX_VLM_CACHE_HOME": str(cache),
            "APC_ENABLED": "1" if profile.prefix_cache else "0",
            # Shards on disk survive a cache reset, and a cold request would not be cold.
            "APC_DISK_ENABLED": "0",
            "TOKENIZERS_PARALLELISM": "false",
        }
        if sys.platform.startswith("linux"):
            values["MLX_DISABLE_COMPILE"] = "1"
            values["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(os.cpu_count() or 1))
        return values

    def flags_of_keys(self, profile: ServerProfile) -> dict[str, str]:
        """Return what our wrapper is given in words and in the environment."""
        return {
            "max-num-seqs": str(profile.running_limit or RUNNING_LIMIT),
            "apc-enabled": str(bool(profile.prefix_cache)).lower(),
        }

    def frozen_line(self, profile: ServerProfile) -> list[str]:
        """Return what is added to the line that the lab writes itself."""
        limit = [] if profile.running_limit is None else [self.limit_flag, str(profile.running_limit)]
        return ["mlx_vlm.server", *limit, *(profile.launch.extra if profile.launch else ())]

    def is_its_own(self, front: Sequence[str]) -> bool:
        """Also our wrapper starts it."""
        return _wraps(front) or super().is_its_own(front)

    def help_front(self, front: Sequence[str]) -> list[str]:
        """Our wrapper refuses to come up, even for its help, on any other host."""
        return [*front, "--host", "127.0.0.1"] if _wraps(front) else list(front)

    async def readback(self, client: httpx.AsyncClient, profile: ServerProfile) -> EffectiveSettings:
        """Effective settings, asked of /health, /v1/settings, /v1/models and our own address. Raises EngineError."""
        response = await request(client, profile, "/health")
        health = parse_object(response.content) or {}
        models = model_ids(await get_json(client, profile, "/v1/models"))
        current = (await get_json(client, profile, "/v1/settings")).get("current")
        current = current if isinstance(current, dict) else {}
        ours = await request(client, profile, "/vlmconsole/effective")
        more = (parse_object(ours.content) or {}) if ours.status_code == 200 else {}
        server = response.headers.get("server", "")
        loaded = text(health.get("loaded_model"))
        quantization = from_json(more.get("quantization"))
        settings = EffectiveSettings(
            engine=self.name,
            version=server.partition("/")[2] or None if server.startswith("mlx_vlm") else None,
            model=loaded or next((m["id"] for m in models if m.get("loaded")), None),
            model_path=loaded,
            adapters=tuple(name for name in (text(health.get("loaded_adapter")),) if name),
            context=whole(health.get("effective_context_limit")),
            running_limit=whole(more.get("max_num_seqs")),
            precision=quantization.label if quantization else text(more.get("precision")),
            quantization=more["quantization"] if quantization else None,
            device=text(more.get("device")),
            prefix_cache=truth(health.get("apc_enabled")),
            values={
                **{key.replace("_", "-"): more[key] for key in ("max_num_seqs", "prefill_step_size") if key in more},
                **{key.replace("_", "-"): value for key, value in current.items() if value is not None},
            },
            raw={"health": health, "settings": current, "effective": more},
        )
        if not more:
            settings.notes.append(
                "not started by vlmconsole: mlx-vlm itself does not tell its running limit or precision"
            )
        if loaded is None:
            settings.notes.append(
                "no model is loaded now (a request with an unknown name unloads it); the next good one loads it"
            )
        return settings

    async def flush(self, client: httpx.AsyncClient, profile: ServerProfile) -> Flushed:
        """Resets the prefix cache in memory; with the cache off there is nothing to reset."""
        response = await request(client, profile, "/v1/cache/reset", "POST")
        if response.status_code != 200:
            return Flushed(False, "not flushed: " + http_error(profile, response.status_code, response.content))
        reply = parse_object(response.content) or {}
        if reply.get("enabled") is False:
            return Flushed(False, "nothing to flush: the prefix cache is off")
        return Flushed(reply.get("status") == "cleared", f"the server says: {reply.get('status') or 'nothing'}")

    def own_name(self, profile: ServerProfile) -> str:
        """None: it sends what it has loaded by the name that it was started with, and loads any other name anew."""
        return ""

    def name_without_model(self, profile: ServerProfile) -> str:
        """Return what it was started with: it may have unloaded its model."""
        return profile.served_model or str(profile.model_dir() or profile.model)

    def select_adapter(self, body: dict[str, Any], served: str, adapter: str | None) -> None:
        """Always says which adapter (null is the base), as an omitted one is inherited from the request before.

        Also switches off the silent summarising of long conversations.
        """
        body["adapter_path"] = adapter
        body["context_management"] = []

    async def make_ready(
        self, client: httpx.AsyncClient, profile: ServerProfile, served: str, adapter: SelectedAdapter | None
    ) -> None:
        """Opens the connection and has the wanted adapter (or the bare base) loaded, by a question for one token.

        The server keeps one model in memory, with one adapter or none, and loads it anew for a request that names
        another: that time is no part of an answer's. Raises EngineError with what it said of the adapter.
        """
        response = await request(client, profile, self.ready_path)
        health = parse_object(response.content) or {}
        wanted = adapter.selector if adapter else None
        if response.status_code != 200 or "loaded_adapter" not in health:
            return
        if health["loaded_adapter"] == wanted and health.get("loaded_model") == served:
            return
        if adapter is not None:
            await _name_adapter(client, profile, adapter)
        body: dict[str, Any] = {"model": served, "messages": [{"role": "user", "content": "."}], "max_tokens": 1}
        self.select_adapter(body, served, wanted)
        response = await request(client, profile, "/v1/chat/completions", "POST", body, timeout_s=LOADING_S)
        if response.status_code != 200:
            reason = http_error(profile, response.status_code, response.content)
            code = "adapter-unloaded" if adapter else "model-unloaded"
            raise EngineError(f"adapter {adapter.name} could not be loaded: {reason}" if adapter else reason, code=code)

    def held_output(self, profile: ServerProfile) -> dict[str, Any]:
        """Return the end tokens get a bias of −100, in the place of min_tokens. Empty when the model's folder, which
        names those tokens, is not on this machine.
        """
        folder = profile.model_dir()
        ends: list[int] = []
        for name in ("generation_config.json", "config.json") if folder else ():
            assert folder is not None
            try:
                stored = read_json(folder / name).get("eos_token_id")
            except (OSError, ValueError, AttributeError):
                continue  # many models have no generation_config.json
            ends += [token for token in (stored if isinstance(stored, list) else [stored]) if whole(token) is not None]
        return {"logit_bias": {str(token): -100.0 for token in sorted(set(ends))}} if ends else {}

    def block_size(self, settings: EffectiveSettings, fetch: Callable[[str], str]) -> int | None:
        """From the statistics of its prefix cache."""
        stats = json_value(fetch("/v1/cache/stats"))
        return whole(stats.get("block_size")) if isinstance(stats, dict) else None


async def _name_adapter(client: httpx.AsyncClient, profile: ServerProfile, adapter: SelectedAdapter) -> None:
    """Tell a server of ours the adapter, since it takes none that a request alone names. Raises EngineError."""
    response = await request(client, profile, mlx_guard.ADAPTERS, "POST", {"folder": adapter.selector})
    if response.status_code not in (200, 404, 405):  # mlx-vlm itself has no such address, and takes the folder
        reason = http_error(profile, response.status_code, response.content)
        raise EngineError(f"adapter {adapter.name} could not be loaded: {reason}", code="adapter-unloaded")


def interpreter(profile: ServerProfile, places: Places) -> str:
    """Return the Python that serves: the profile's, else this one if it has mlx-vlm, else the environment `mlx`.

    Raises ProfileError when none is found, saying how to get one.
    """
    named = profile.launch.interpreter if profile.launch else ""
    if named:
        return interpreter_path(named, places)
    if importlib.util.find_spec("mlx_vlm") is not None:
        return sys.executable
    made = places.environments / "mlx" / "bin" / "python"
    if made.exists():
        return str(made)
    raise ProfileError(
        f"profile {profile.name} needs mlx-vlm, which this Python does not have:"
        " pip install 'vlmconsole[local]', or vlmconsole env make mlx"
    )


def _wraps(front: Sequence[str]) -> bool:
    return any(Path(word).name == Path(mlx_server.__file__).name for word in front)


ENGINE = Mlx()
