"""vLLM: settings read back, cache flush, adapters, metrics.

Its metrics were seen in a recording of 0.32; the older names (0.6–0.9) are from its source.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx

from vlmconsole.engines.effective import TOKEN_SAMPLING, EffectiveSettings, Flushed, model_ids, names_of, text, whole
from vlmconsole.engines.engine import Engine
from vlmconsole.engines.http import EngineError, get_json, http_error, parse_object, request
from vlmconsole.engines.metrics import EngineMetric, MetricTable
from vlmconsole.engines.profile import ServerProfile

_BLOCK = re.compile(r'^vllm:cache_config_info\{[^}]*\bblock_size="(\d+)"', re.M)


class VLLM(Engine):
    """Started by its own launch line, or elsewhere."""

    name = "vllm"
    label = "vLLM"
    package = "vllm"
    help_flags = ("--help=all", "--help")
    key_variable = "VLLM_API_KEY"
    limit_flag = "--max-num-seqs"
    cache_flags = ("--enable-prefix-caching", "--no-enable-prefix-caching")
    phases = (
        ("Starting to load model", "loading the model"),
        ("Loading weights took", "allocating the KV cache"),
        ("Capturing CUDA graph", "capturing CUDA graphs"),
    )
    request_fields = TOKEN_SAMPLING | {"cache_salt"}
    adapter_rule = "by name"
    picture_caches = ("mm-processor-cache-gb", "disable-mm-preprocessor-cache")
    metrics = MetricTable(
        "vllm",
        {
            "running": EngineMetric(("vllm:num_requests_running",), "gauge"),
            "queued": EngineMetric(("vllm:num_requests_waiting",), "gauge"),
            "kv": EngineMetric(("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), "gauge", "max"),
            "prompt_tokens": EngineMetric(
                ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"), "counter"
            ),
            "cached_tokens": EngineMetric(
                ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"), "counter"
            ),
            "output_tokens": EngineMetric(("vllm:generation_tokens_total",), "counter"),
            "requests": EngineMetric(("vllm:request_success_total",), "counter"),
            "ttft": EngineMetric(("vllm:time_to_first_token_seconds",), "histogram"),
            "tpot": EngineMetric(
                ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"), "histogram"
            ),
            "queue_time": EngineMetric(("vllm:request_queue_time_seconds",), "histogram"),
        },
        counted="tokens are counted at every step",
    )

    def plain_flag(self, flag: str) -> str:
        """It takes underscores, and keys of a JSON flag after a dot."""
        return flag.partition(".")[0].replace("_", "-")

    async def readback(self, client: httpx.AsyncClient, profile: ServerProfile) -> EffectiveSettings:
        """Return what a plain vLLM tells: version, models, context. Its start-up flags are not served without its dev
        mode.
        """
        models = model_ids(await get_json(client, profile, "/v1/models"))
        try:
            version = text((await get_json(client, profile, "/version")).get("version"))
        except EngineError:
            version = None
        base = [m for m in models if not m.get("parent")]
        return EffectiveSettings(
            engine=self.name,
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

    async def flush(self, client: httpx.AsyncClient, profile: ServerProfile) -> Flushed:
        """Resets the prefix cache. A refusal comes with status 200: only the body counts."""
        response = await request(client, profile, "/reset_prefix_cache", "POST")
        if response.status_code == 404:
            return Flushed(False, "not flushed: start vLLM with VLLM_SERVER_DEV_MODE=1 for /reset_prefix_cache")
        if response.status_code != 200:
            return Flushed(False, "not flushed: " + http_error(profile, response.status_code, response.content))
        answer = parse_object(response.content)
        if answer is not None and answer.get("success") is True:
            return Flushed(True, "cache flushed")
        if answer is not None and answer.get("success") is False:
            return Flushed(False, "not flushed: a request is running")
        return Flushed(False, "not known: the server did not say whether the reset succeeded")

    def select_adapter(self, body: dict[str, Any], served: str, adapter: str | None) -> None:
        """Each adapter is served under its own model name."""
        if adapter:
            body["model"] = adapter

    def block_size(self, settings: EffectiveSettings, fetch: Callable[[str], str]) -> int | None:
        """From the metrics' line of the cache's configuration."""
        match = _BLOCK.search(fetch("/metrics"))
        return int(match[1]) if match else None


ENGINE = VLLM()
