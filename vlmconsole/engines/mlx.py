"""mlx-vlm: how it is started here, its settings read back, cache reset, adapters, and what its requests must carry."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

import httpx

from vlmconsole.engines import mlx_guard, mlx_server
from vlmconsole.engines.adapter_choice import SelectedAdapter
from vlmconsole.engines.effective import EffectiveSettings, Flushed, model_ids, text, truth, whole
from vlmconsole.engines.http import EngineError, get_json, http_error, parse_object, request
from vlmconsole.engines.profile import ProfileError, ServerProfile
from vlmconsole.models.quantization import from_json
from vlmconsole.runs.places import Places
from vlmconsole.system.reading import read_json

READY_PATH = "/health"
EXTRAS = frozenset({"top_p", "top_k", "seed", "repetition_penalty", "response_format", "logit_bias"})
"""What it really honours; `stop`, `min_tokens` and `ignore_eos` are accepted and silently ignored."""
LOADING_S = 600.0
"""Longest wait for a model to be loaded again with another adapter."""
PHASES = (
    ("vlmconsole: phase importing", "starting python"),
    ("vlmconsole: phase loading", "loading the model"),
    ("Application startup complete", "ready"),
)


def interpreter(profile: ServerProfile, places: Places) -> str:
    """The Python that serves: the profile's, else this one if it has mlx-vlm, else the environment `mlx`.

    Raises ProfileError when none is found, saying how to get one.
    """
    from vlmconsole.servers.processes import interpreter_path

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


def command(profile: ServerProfile, places: Places, port: int) -> list[str]:
    """The words that start the server on the loopback interface."""
    folder = profile.model_dir()
    if folder is None:
        # Servers here are offline: what is not on this machine already cannot be loaded.
        way = f"; get it with: hf download {profile.model}" if profile.model.count("/") == 1 else ""
        raise ProfileError(
            f"profile {profile.name}: there is no model at {profile.model or '(model is empty)'}{way}",
            code="model-missing",
        )
    words = [interpreter(profile, places), "-u", mlx_server.__file__]
    words += ["--host", "127.0.0.1", "--port", str(port), "--model", str(folder)]
    words += ["--max-num-seqs", str(profile.running_limit or 4), "--log-level", "INFO"]
    words += ["--trust-remote-code"] if profile.trust_remote_code else []
    return words + list(profile.launch.extra if profile.launch else ())


def environment(profile: ServerProfile, places: Places) -> dict[str, str]:
    """What the server's environment gets on top of ours: offline, private caches, the prefix cache as asked for."""
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


async def readback(client: httpx.AsyncClient, profile: ServerProfile) -> EffectiveSettings:
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
        engine="mlx",
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
        settings.notes.append("not started by vlmconsole: mlx-vlm itself does not tell its running limit or precision")
    if loaded is None:
        settings.notes.append(
            "no model is loaded now (a request with an unknown name unloads it); the next good one loads it"
        )
    return settings


async def flush(client: httpx.AsyncClient, profile: ServerProfile) -> Flushed:
    """Resets the prefix cache in memory; with the cache off there is nothing to reset."""
    response = await request(client, profile, "/v1/cache/reset", "POST")
    if response.status_code != 200:
        return Flushed(False, "not flushed: " + http_error(profile, response.status_code, response.content))
    said = parse_object(response.content) or {}
    if said.get("enabled") is False:
        return Flushed(False, "nothing to flush: the prefix cache is off")
    return Flushed(said.get("status") == "cleared", f"the server says: {said.get('status') or 'nothing'}")


def select_adapter(body: dict[str, Any], served: str, adapter: str | None) -> None:
    """Always says which adapter (null is the base), as an omitted one is inherited from the request before.

    Also switches off the silent summarising of long conversations.
    """
    body["adapter_path"] = adapter
    body["context_management"] = []


async def make_ready(
    client: httpx.AsyncClient, profile: ServerProfile, served: str, adapter: SelectedAdapter | None
) -> None:
    """Opens the connection and has the wanted adapter (or the bare base) loaded, by a question for one token.

    The server keeps one model in memory, with one adapter or none, and loads it anew for a request that names another:
    that time is no part of an answer's. Raises EngineError, when the adapter cannot be loaded with what was said.
    """
    response = await request(client, profile, READY_PATH)
    health = parse_object(response.content) or {}
    wanted = adapter.selector if adapter else None
    if response.status_code != 200 or "loaded_adapter" not in health:
        return
    if health["loaded_adapter"] == wanted and health.get("loaded_model") == served:
        return
    if adapter is not None:
        await _name_adapter(client, profile, adapter)
    body: dict[str, Any] = {"model": served, "messages": [{"role": "user", "content": "."}], "max_tokens": 1}
    select_adapter(body, served, wanted)
    response = await request(client, profile, "/v1/chat/completions", "POST", body, timeout_s=LOADING_S)
    if response.status_code != 200:
        said = http_error(profile, response.status_code, response.content)
        code = "adapter-unloaded" if adapter else "model-unloaded"
        raise EngineError(f"adapter {adapter.name} could not be loaded: {said}" if adapter else said, code=code)


async def _name_adapter(client: httpx.AsyncClient, profile: ServerProfile, adapter: SelectedAdapter) -> None:
    """Tell a server of ours the adapter, since it takes none that a request alone names. Raises EngineError."""
    response = await request(client, profile, mlx_guard.ADAPTERS, "POST", {"folder": adapter.selector})
    if response.status_code not in (200, 404, 405):  # mlx-vlm itself has no such address, and takes the folder
        said = http_error(profile, response.status_code, response.content)
        raise EngineError(f"adapter {adapter.name} could not be loaded: {said}", code="adapter-unloaded")


def held_output(profile: ServerProfile) -> dict[str, Any]:
    """Request fields that keep an answer going to its ceiling, in the place of min_tokens: the end tokens get a bias
    of −100. Empty when the model's folder, which names those tokens, is not on this machine.
    """
    folder = profile.model_dir()
    ends: list[int] = []
    for name in ("generation_config.json", "config.json") if folder else ():
        assert folder is not None
        try:
            found = read_json(folder / name).get("eos_token_id")
        except (OSError, ValueError, AttributeError):
            continue  # many models have no generation_config.json
        ends += [token for token in (found if isinstance(found, list) else [found]) if whole(token) is not None]
    return {"logit_bias": {str(token): -100.0 for token in sorted(set(ends))}} if ends else {}
