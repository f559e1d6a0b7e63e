"""What a server says about itself: read back, never assumed from the flags it was started with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vlmconsole.system.machine import machine_line

SAMPLING = frozenset(
    {"stop", "top_p", "seed", "presence_penalty", "frequency_penalty", "logit_bias", "response_format"}
)
"""Request fields that every OpenAI-like server honours."""
TOKEN_SAMPLING = SAMPLING | {"logit_bias", "min_tokens", "ignore_eos", "stop_token_ids", "top_k"}
"""What SGLang and vLLM honour besides."""


@dataclass(slots=True)
class EffectiveSettings:
    """The settings in force; None where the server does not say. Token counts in tokens.

    values: setting by its launch-flag name (as in `--chunked-prefill-size`, without dashes in front), for showing
    "wanted" beside "read back".
    """

    engine: str
    version: str | None = None
    model: str | None = None
    """The name to send."""
    listed: tuple[str, ...] | None = None
    """Every name that /v1/models holds; None where it does not say what may be asked for."""
    model_path: str | None = None
    adapters: tuple[str, ...] = ()
    running_limit: int | None = None
    context: int | None = None
    kv_tokens: int | None = None
    """KV-cache capacity, of all ranks."""
    kv_dtype: str | None = None
    """What keys and values are stored as."""
    ranks: int = 1
    """Data-parallel ranks; `running_limit` and `kv_tokens` are of all of them together."""
    precision: str | None = None
    quantization: dict[str, Any] | None = None
    """Method, bits, group size and mode as the server tells them (`models.quantization`); `precision` says it too."""
    device: str | None = None
    prefix_cache: bool | None = None
    cache_report: bool | None = None
    omitted_cached_is_zero: bool = False
    """True only when version, cache report and prefix-cache switch were all verified (see engines.sglang)."""
    cached_rule: str = "cached tokens count as the server reports them; not reported is unknown"
    values: dict[str, Any] = field(default_factory=dict)
    raw: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def this_machine(self) -> str | None:
        """The machine, when the server runs on this one: only a device that the server itself named counts."""
        if not self.device:
            return None
        return machine_line([] if self.device == "CPU" else [self.device])

    def told(self, flag: str) -> Any:
        """Return what the server says of one launch flag (`chunked-prefill-size` or with `_`), shown or not; else
        None.
        """
        info = self.raw.get("server_info")
        hidden = info.get(flag.replace("-", "_")) if isinstance(info, dict) else None
        return self.values.get(flag.replace("_", "-"), hidden)


@dataclass(frozen=True, slots=True)
class Flushed:
    """Whether a prefix-cache flush took place, and what the server said."""

    ok: bool
    why: str


def whole(value: Any) -> int | None:
    """Return the value if it is a whole number (and no bool)."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def truth(value: Any) -> bool | None:
    """Return the value if it is a bool."""
    return value if isinstance(value, bool) else None


def text(value: Any) -> str | None:
    """Return the value if it is a non-empty string."""
    return value if isinstance(value, str) and value else None


def model_ids(models: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of a /v1/models answer that have an id."""
    data = models.get("data")
    return [m for m in data if isinstance(m, dict) and text(m.get("id"))] if isinstance(data, list) else []


def names_of(models: Sequence[dict[str, Any]]) -> tuple[str, ...] | None:
    """Return the names in entries of /v1/models; None without one: then the list says nothing."""
    return tuple(str(m["id"]) for m in models) or None
