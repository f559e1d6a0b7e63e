"""What a figure of a file is called for people, with its unit: one table for screens, commands and reports.

Names that a person types (settings after `--set`, flags of a server) stay as they are typed, and so do names of
datasets, groups and tensors.
"""

from __future__ import annotations

from vlmconsole.text.numbers import number
from vlmconsole.text.sizes import MIB

#: key of a file → its title. A unit stands behind a comma.
TITLES = {
    # scores and gates
    "all_correct": "all correct",
    "partial": "partial reward",
    "score": "score",
    "sight_gain": "sight gain",
    "blind": "blind answers",
    "mcnemar_p": "McNemar p",
    "wins": "won",
    "losses": "lost",
    "http_failures": "failed requests",
    "endings": "how answers ended",
    "http_ok": "request came through",
    "same_answers": "answers the same before and after",
    "taken_over": "answers taken over from an earlier attempt",
    "interval": "95 % interval",
    "plan_sha256": "plan, SHA-256",
    "rule_sha256": "rule, SHA-256",
    "cut_off": "answers cut off",
    # conditions
    "engine_version": "engine version",
    "asked_model": "model asked for",
    "model_sha256": "model weights, SHA-256",
    "base_sha256": "base weights, SHA-256",
    "adapter_sha256": "adapter, SHA-256",
    "parent_sha256": "adapter it starts from, SHA-256",
    "dataset_sha256": "dataset, SHA-256",
    "picture_sha256": "image, SHA-256",
    "image": "image size",
    "image_formats": "image formats",
    "image_bytes": "bytes of an image",
    "data_sha256": "questions sent, SHA-256",
    "repeats": "repeated questions",
    "input_tokens": "input length, tokens",
    "output_tokens": "actual output length, tokens",
    "client_concurrency": "client concurrency C",
    "running_limit": "running limit B",
    "rate": "request rate",
    "arrivals": "arrivals",
    "cache": "prefix cache",
    "warm_up": "warm-up",
    "clock": "timing window",
    "top_p": "top-p",
    "system_sha256": "system prompt, SHA-256",
    "prompt_sha256": "prompt form, SHA-256",
    "template_sha256": "chat template, SHA-256",
    "max_tokens": "max tokens",
    "max_new_tokens": "max tokens",
    "client_error": "client's own error",
    # measuring a server
    "ttft_s": "TTFT, s",
    "tpot_s": "TPOT, s",
    "itl_s": "ITL, s",
    "e2e_s": "E2E, s",
    "ttft_p95": "TTFT p95",
    "ttfr_s": "time to first reasoning piece, s",
    "ttft_from_scheduled_s": "TTFT from when it was due, s",
    "throughput_tok_s": "throughput, tok/s",
    "requests_per_s": "requests, 1/s",
    "goodput": "goodput",
    "slo": "service-level objective",
    "requests_spent": "requests sent",
    "requests_grid": "requests of a fixed grid",
    "confirmed_on": "confirmed on",
    "reached": "resolution reached, share",
    "violating": "requests that break it, share",
    "client_lag_s": "client lag, s",
    "in_flight": "in flight",
    "set_aside": "set aside",
    "host": "load of the machine",
    "planned_cells": "cells planned",
    "missing_cells": "cells missing",
    "same_cell": "same cell",
    "falls_s": "fall of TTFT, s",
    "control_falls_s": "fall of TTFT without the cache, s",
    "warm_cached": "cached tokens, warm",
    "cold_cached": "cached tokens, cold",
    "cold_share": "most a cold request may have cached, share",
    "control_share": "most the control may fall, share",
    "least_pairs": "least pairs",
    "prefix_tokens": "prefix, tokens",
    "cached_rule": "how cached tokens are read",
    "other_layers": "other caches",
    "max_num_seqs": "running limit B",
    "prefill_step_size": "prefill step, tokens",
    "chunked_prefill_size": "prefill chunk, tokens",
    "mem_fraction_static": "memory share of the pool",
    "throughput_floor": "least throughput, share of the baseline",
    "close_within": "p95s count as close within, share",
    "finish_reason": "finish reason",
    "limits_of_this": "what this does not show",
    # training
    "lr": "learning rate",
    "grad_norm": "gradient norm",
    "grad_norm_first": "gradient norm, first step",
    "grad_norm_last": "gradient norm, last step",
    "reward_mean": "mean reward",
    "reward_std": "spread of rewards",
    "reward_first": "mean reward, first step",
    "reward_last": "mean reward, last step",
    "clip_fraction": "clipped share",
    "zero_advantage": "groups without advantage",
    "length_mean": "mean answer length, tokens",
    "final_loss": "last loss",
    "dev": "development",
    "uids": "its images",
    "dev_n": "dev set images",
    "dev_label": "development, label",
    "max_norm": "gradient clipped at norm",
    "weight_decay": "weight decay",
    "supervised": "tokens learned from",
    "supervised_tokens": "tokens learned from",
    "visual_tokens_supervised": "visual tokens learned from",
    "tensors_changed": "tensors changed",
    "numbers_changed": "numbers changed",
    "change_norm": "norm of the change",
    "language_tensors_changed": "language tensors changed",
    "language_numbers_changed": "language numbers changed",
    "float32_numbers_changed": "of the float32 copies changed",
    "float32_masters": "float32 copies are stepped",
    "rounding_norm": "norm of half a rounding step",
    "language_rounding_norm": "norm of half a rounding step, language",
    "language_change_norm": "norm of the change, language",
    "visual_tensors_changed": "visual tensors changed",
    "visual_tensors_trained": "visual tensors trained",
    "vision_bit_identical": "vision the same bit for bit",
    "reload_same_answers": "same answers after reloading",
    "frozen_before": "frozen weights before, SHA-256",
    "frozen_after": "frozen weights after, SHA-256",
    "before_l2": "norm before",
    "after_l2": "norm after",
    "change_l2": "norm of the change",
    "change_max": "largest change",
    "seconds": "seconds",
    "t": "time, s since 1970",
}
#: what lies below these is named by a person or another program, and shown as it is
NAMED = frozenset({"data", "datasets", "digests", "groups", "settings", "versions", "cells", "counts"})
_UNITS = {"_sha256": "SHA-256", "_ms": "ms", "_s": "s", "_bytes": "MiB"}


def title(key: str) -> str:
    """Return a key of a file for people: `ttft_s` is `TTFT, s`; one that nobody foresaw loses its underscores."""
    known = TITLES.get(key)
    if known is not None:
        return known
    for ending, unit in _UNITS.items():
        if key.endswith(ending) and len(key) > len(ending):
            return f"{key.removesuffix(ending).replace('_', ' ')}, {unit}"
    return key.replace("_", " ")


def in_unit(key: str, value: object) -> object:
    """Return the value in the unit that `title` names: bytes become MiB, everything else stays."""
    size = number(value) if key.endswith("_bytes") and key not in TITLES else None
    return value if size is None else round(size / MIB)
