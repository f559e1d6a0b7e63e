"""What was asked for beside what is in force: a server's settings, wanted against read back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vlmconsole.engines.effective import EffectiveSettings
from vlmconsole.engines.profile import ServerProfile
from vlmconsole.engines.registry import find_engine
from vlmconsole.text.numbers import decimal
from vlmconsole.text.sizes import size
from vlmconsole.vision.kv import KVError, from_config

#: Flags whose meaning stands in a line of its own, under the field's word.
NAMED = frozenset({"max-running-requests", "max-num-seqs", "context-length", "max-model-len", "dtype",
                   "disable-radix-cache", "apc-enabled", "model-path", "served-model-name", "model",
                   "host", "port"})  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """One line. `state`: same, differs (an alarm), or unknown, where one side does not say."""

    name: str
    wanted: str
    read: str
    state: Literal["same", "differs", "unknown"]
    note: str = ""


def compare_settings(profile: ServerProfile, read: EffectiveSettings | None) -> list[Setting]:
    """Return what `profile` asks for beside what was read back; None: nothing was."""
    wanted = find_engine(profile.engine).wanted(profile)
    limit = profile.running_limit or wanted.get("max-running-requests") or wanted.get("max-num-seqs")
    context = profile.context or wanted.get("context-length") or wanted.get("max-model-len")
    cache = profile.prefix_cache
    if cache is None and "disable-radix-cache" in wanted:
        cache = False
    known: dict[str, Any] = read.values if read is not None else {}
    lines = [
        _setting("model", profile.served_model, read.model if read else None),
        _setting("running limit B", limit, read.running_limit if read else None),
        _setting("context", context, read.context if read else None),
        _setting("precision", profile.precision or wanted.get("dtype"), read.precision if read else None),
        _setting("prefix cache", cache, read.prefix_cache if read else None),
        _setting("KV capacity", None, read.kv_tokens if read else None, capacity(profile, read)),
    ]
    names = dict.fromkeys([*(name for name in wanted if name not in NAMED), *known])
    lines += [
        _setting(name, wanted.get(name), known.get(name))
        for name in names
        if name not in NAMED and (name in wanted or _worth(known[name]))
    ]
    return lines


def capacity(profile: ServerProfile, effective: EffectiveSettings | None) -> str:
    """Return how many whole sequences the KV cache holds, and its bytes where the model's shape is known; "" if
    neither.
    """
    if effective is None or not effective.kv_tokens:
        return ""
    parts = []
    if effective.context:
        parts.append(f"tokens = {effective.kv_tokens // effective.context} × {decimal(effective.context)}")
    folder = profile.model_dir()
    if folder is None and effective.model_path and (Path(effective.model_path) / "config.json").is_file():
        folder = Path(effective.model_path)
    if folder is not None:
        try:
            parts.append(size(from_config(folder).stored_as(effective.kv_dtype).bytes(effective.kv_tokens)))
        except KVError as error:
            parts.append(error.message)
    return ", ".join(parts)


def _setting(name: str, wanted: Any, read: Any, note: str = "") -> Setting:
    asked, reported = _text(wanted), _text(read)
    if not asked or not reported:
        return Setting(name, asked, reported, "unknown", note)
    return Setting(name, asked, reported, "same" if _same(asked, reported) else "differs", note)


def _text(value: Any) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, str) and value in ("true", "false"):
        return "on" if value == "true" else "off"
    return decimal(value) if isinstance(value, int) else str(value)


def _same(asked: str, reported: str) -> bool:
    """Whether two texts mean one value: 0.55 and 0.550, true and on, a number with and without its commas."""
    plain = [
        {"true": "on", "false": "off"}.get(text.lower(), text.lower().replace(",", "")) for text in (asked, reported)
    ]
    if plain[0] == plain[1]:
        return True
    try:
        return float(plain[0]) == float(plain[1])
    except ValueError:
        return False


def _worth(value: Any) -> bool:
    """Read-back values without a wish that a line can hold."""
    return isinstance(value, str | int | float | bool) and len(str(value)) <= 60
