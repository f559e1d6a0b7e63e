"""Which metric of which engine is which figure: the one place that knows the engines' names.

A figure's names are tried in order, the newest server first; what an older server calls otherwise follows. Seen in
recordings of SGLang 0.5.23 and vLLM 0.32; the older names (SGLang 0.5.5, vLLM 0.6–0.9) are from their sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "histogram", "gauge"]

#: Labels that number replicas of one scheduler: tensor- and pipeline-parallel ranks report the same figure again.
REPLICA_LABELS = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "pid"})


@dataclass(frozen=True)
class Metric:
    """One figure's place in an engine's metrics.

    `together` says how several label sets become one figure: counts add up over data-parallel ranks, a share of
    a pool is the fullest rank's (a mean would hide the rank that blocks). `labels`: only samples that carry them.
    """

    names: tuple[str, ...]
    kind: Kind
    together: Literal["sum", "max"] = "sum"
    labels: tuple[tuple[str, str], ...] = ()


#: engine → figure → metric. Figures: counters and histograms only grow; the rest are gauges of the moment.
PROMETHEUS: dict[str, dict[str, Metric]] = {
    "sglang": {
        "running": Metric(("sglang:num_running_reqs",), "gauge"),
        "queued": Metric(("sglang:num_queue_reqs",), "gauge"),
        "kv": Metric(("sglang:token_usage",), "gauge", "max"),
        "kv_tokens": Metric(("sglang:num_used_tokens",), "gauge"),
        "kv_capacity": Metric(("sglang:max_total_num_tokens",), "gauge"),
        "kv_used": Metric(("sglang:kv_used_tokens",), "gauge"),
        "kv_cached": Metric(("sglang:kv_evictable_tokens",), "gauge"),
        "kv_free": Metric(("sglang:kv_available_tokens",), "gauge"),
        "gauge_throughput": Metric(("sglang:gen_throughput",), "gauge"),
        "prompt_tokens": Metric(("sglang:prompt_tokens_total",), "counter"),
        "output_tokens": Metric(("sglang:generation_tokens_total",), "counter"),
        # Counted as they are made; the one above counts the tokens of requests that ended.
        "decode_tokens": Metric(("sglang:realtime_tokens_total",), "counter", labels=(("mode", "decode"),)),
        "cached_tokens": Metric(("sglang:cached_tokens_total",), "counter"),
        "requests": Metric(("sglang:num_requests_total",), "counter"),
        "ttft": Metric(("sglang:time_to_first_token_seconds",), "histogram"),
        "tpot": Metric(("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"), "histogram"),
        "queue_time": Metric(("sglang:queue_time_seconds",), "histogram"),
    },
    "vllm": {
        "running": Metric(("vllm:num_requests_running",), "gauge"),
        "queued": Metric(("vllm:num_requests_waiting",), "gauge"),
        "kv": Metric(("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), "gauge", "max"),
        "prompt_tokens": Metric(("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"), "counter"),
        "cached_tokens": Metric(("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"), "counter"),
        "output_tokens": Metric(("vllm:generation_tokens_total",), "counter"),
        "requests": Metric(("vllm:request_success_total",), "counter"),
        "ttft": Metric(("vllm:time_to_first_token_seconds",), "histogram"),
        "tpot": Metric(("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"), "histogram"),
        "queue_time": Metric(("vllm:request_queue_time_seconds",), "histogram"),
    },
}

#: Gauges that SGLang writes together, every 40 decode steps or after 30 s idle. When *none* of them moved while
#: counters did, they were not written, and their figures are as old as their last change.
WRITTEN_TOGETHER: dict[str, tuple[str, ...]] = {"sglang": ("running", "queued", "kv", "kv_tokens", "gauge_throughput")}
STALE_WHY = {"sglang": "SGLang writes this gauge every 40 decode steps or after 30 s idle"}

#: When an engine's token counters move: this decides over how long a window a rate means something.
COUNTED = {
    "sglang": "tokens are counted when a request ends",
    "vllm": "tokens are counted at every step",
    "mlx": "tokens are counted when a request ends",
}
ENDED = frozenset({"sglang", "mlx"})  # engines whose `output_tokens` are those of requests that ended
DECODED = "tokens are counted as they are decoded"  # by the counter `decode_tokens`, where an engine has it


def wanted(engine: str) -> frozenset[str]:
    """Every metric name of an engine's table, without the suffixes that histograms add."""
    return frozenset(name for metric in PROMETHEUS[engine].values() for name in metric.names)
