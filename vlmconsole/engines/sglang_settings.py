"""All settings that SGLang tells: those that decide speed by their names, every other one in a hash.

What says where it listens, what it writes down or how it is just now is no setting: it differs between two starts of
the same server.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from vlmconsole.runs.conditions import canonical_json

OTHER = "other-settings-sha256"
"""The name under which the hash of the rest stands among the settings."""
SHOWN = (
    *("max_running_requests", "chunked_prefill_size", "mem_fraction_static", "context_length", "dtype", "tp_size"),
    *("attention_backend", "mm_attention_backend", "disable_radix_cache", "enable_cache_report", "enable_metrics"),
    *("disable_overlap_schedule", "disable_cuda_graph", "enable_deterministic_inference", "random_seed", "device"),
    *("max_total_tokens", "served_model_name", "skip_server_warmup", "sleep_on_idle"),
    # parallelism
    *("dp_size", "pp_size", "ep_size", "nnodes", "enable_dp_attention", "load_balance_method", "moe_a2a_backend"),
    # weights and cache
    *("quantization", "kv_cache_dtype", "load_format", "page_size", "cpu_offload_gb", "radix_eviction_policy"),
    *("enable_hierarchical_cache", "hicache_ratio", "hicache_size", "swa_full_tokens_ratio"),
    # scheduling
    *("schedule_policy", "schedule_conservativeness", "max_prefill_tokens", "max_queued_requests"),
    *("enable_mixed_chunk", "num_continuous_decode_steps", "stream_interval", "disaggregation_mode"),
    *("prefill_attention_backend", "decode_attention_backend", "sampling_backend", "enable_torch_compile"),
    # speculation
    *("speculative_algorithm", "speculative_draft_model_path", "speculative_num_steps", "speculative_eagle_topk"),
    "speculative_num_draft_tokens",
    # the model's own
    *("mm_process_config", "disable_fast_image_processor", "limit_mm_data_per_request", "reasoning_parser"),
    *("tool_call_parser", "chat_template", "grammar_backend", "enable_lora", "lora_backend", "max_loras_per_batch"),
)
# Of this start, of the moment, or told elsewhere in the conditions.
_PASSING = frozenset(
    {
        *("status", "startup_time", "launch_command", "internal_states", "version", "kv_events"),
        *("max_total_num_tokens", "max_req_input_len", "model_path", "tokenizer_path", "watchdog_timeout"),
        *("soft_watchdog_timeout", "download_dir", "crash_dump_folder", "file_storage_path", "decode_log_interval"),
        *(
            "frontend",
            "weight_cache_timeout",
            "forward_pass_metrics_worker_id",
            "base_gpu_id",
        ),
    }
)
_WHERE = re.compile(
    r"(^|_)(host|ports?|addr|urls?|socket|sockets|ip|endpoint|ipc_name|dirs?|folder|pid|rank)$"
    r"|^(log|ssl|otlp|trace|uvicorn|http2|grpc|smg|export_metrics|watermark|debug|gc|tokenizer_metrics|load_snapshot)_"
    r"|api_key|password|token$"
)


def settings_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings by their launch-flag names; null where one is told to be unset. The rest is under `OTHER`."""
    values = {name.replace("_", "-"): info[name] for name in SHOWN if name in info}
    rest = {
        name: value
        for name, value in info.items()
        if value is not None and name not in SHOWN and name not in _PASSING and not _WHERE.search(name)
    }
    if rest:
        values[OTHER] = hashlib.sha256(canonical_json(rest)).hexdigest()[:16]
    return values


def ranks_of(info: Mapping[str, Any]) -> int:
    """Data-parallel ranks, each with a cache and a running limit of its own."""
    size = info.get("dp_size")
    return size if isinstance(size, int) and not isinstance(size, bool) and size > 1 else 1


def running_limit_of(info: Mapping[str, Any]) -> int | None:
    """B of all ranks together, as the gauges count what runs; None where it does not say."""
    states, ranks = info.get("internal_states"), ranks_of(info)
    workers = [state for state in states if isinstance(state, dict)] if isinstance(states, list) else []
    # The scheduler's own state is what is in force; the top level repeats the flags after their defaults were set.
    each = [_whole(state.get("effective_max_running_requests_per_dp")) for state in workers]
    known = [limit for limit in each if limit is not None]
    if known:
        return sum(known) if len(known) == ranks else known[0] * ranks
    flag = _whole(info.get("max_running_requests"))
    # With data-parallel attention the ranks share the flag's number, else each has it.
    return flag if flag is None or info.get("enable_dp_attention") else flag * ranks


def kv_tokens_of(info: Mapping[str, Any]) -> int | None:
    """KV capacity of all ranks, tokens."""
    tokens = _whole(info.get("max_total_num_tokens"))
    return None if tokens is None else tokens * ranks_of(info)


def kv_dtype_of(info: Mapping[str, Any]) -> str | None:
    """Return what keys and values are stored as: its own setting, or the weights' where that is `auto`."""
    own = info.get("kv_cache_dtype")
    dtype = info.get("dtype") if own in (None, "auto") else own
    return dtype if isinstance(dtype, str) and dtype != "auto" else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
