"""What an adapter_config.json asks for: the plain LoRA that is computed here exactly as PEFT does, or a refusal.

An allow-list. A key that is not in `KEYS`, or a value that its rule does not know, is refused by name: PEFT gains a
few fields each release that change what the matrices mean, and an adapter that is merged without one is another model.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.text.numbers import number

LANGUAGE = "model.language_model."
"""Where transformers keeps the language half; patterns of a configuration are matched against whole module names."""

LONGEST_PATTERN = 2000
INITIAL = (True, False, "gaussian", "orthogonal", "eva", "mica")
"""Ways to start that leave the base's weights as they were, so that the trained matrices are the whole change."""


class AdapterError(LabError):
    """An adapter that is not there, damaged, of another shape, or of another base; says which and what to do."""


class SeveralAdaptersError(AdapterError):
    """A name that several adapters have; the message names their runs."""

    code = "adapter-ambiguous"


@dataclass(frozen=True)
class LoraSettings:
    """What a PEFT configuration says of its matrices. Modules are named as transformers does (`LANGUAGE` + layer).

    Follows PEFT 0.21 (`get_pattern_key`, `check_target_module_exists`, `LoraLayer.update_layer`); a test walks every
    field of the installed release against PEFT's own merge.
    """

    rank: int
    alpha: float
    rslora: bool
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    targets: str | tuple[str, ...]
    exclude: str | tuple[str, ...]
    layers: tuple[int, ...] | None
    layers_pattern: tuple[str, ...]
    dropout: float
    initial: bool | str

    @property
    def plain(self) -> bool:
        """One rank and alpha / rank for all layers: what servers and this lab's own training understand."""
        return not (self.rslora or self.rank_pattern or self.alpha_pattern)

    def rank_of(self, module: str) -> int:
        """Return the rank of one module's matrices."""
        return int(self.rank_pattern.get(_matching(self.rank_pattern, module), self.rank))

    def scale_of(self, module: str) -> float:
        """Return what the product of one module's matrices is multiplied by."""
        alpha = self.alpha_pattern.get(_matching(self.alpha_pattern, module), self.alpha)
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.rslora else rank)

    def chooses(self, module: str) -> bool:
        """Would PEFT put matrices beside this module?"""
        if isinstance(self.exclude, str):
            excluded = bool(self.exclude) and re.fullmatch(self.exclude, module) is not None
        else:
            excluded = _ends(module, self.exclude)
        if excluded:
            return False
        if isinstance(self.targets, str):
            if self.targets.lower() == "all-linear":
                return module.rpartition(".")[2] not in ("lm_head", "embed_tokens")
            return re.fullmatch(self.targets, module) is not None
        if not _ends(module, self.targets):
            return False
        return not self.layers or _layer(module, self.layers_pattern) in self.layers


def _matching(patterns: Mapping[str, Any], module: str) -> str:
    return next((key for key in patterns if re.match(rf"(.*\.)?({key})$", module)), module)


def _ends(module: str, names: tuple[str, ...]) -> bool:
    return any(module == name or module.endswith(f".{name}") for name in names)


def _layer(module: str, patterns: tuple[str, ...]) -> int | None:
    """The module's layer number, as PEFT reads it off its name."""
    if not patterns:
        match = re.match(r".*?\.[^.]*\.(?P<index>\d+)\.", module)
    else:
        tries = (re.match(rf"(?:^|.*?\.){pattern}\.(?P<index>\d+)\.", module) for pattern in patterns)
        match = next((candidate for candidate in tries if candidate is not None), None)
    return int(match["index"]) if match else None


def lora_settings(config: Mapping[str, Any], file: Path) -> LoraSettings:
    """Return the settings in a parsed `file`. Raises AdapterError that names every key and value that is not
    understood.
    """
    kind = config.get("peft_type")
    if kind != "LORA":
        raise AdapterError(
            f"{file}: peft_type is {_short(kind)}; only LORA can be used here",
            "train or export it as a plain LoRA",
            code="lora-unsupported",
        )
    rank, alpha = config.get("r"), number(config.get("lora_alpha"))
    # NaN is a number to JSON and True one to Python: either would silently make other weights of the same matrices.
    if not isinstance(rank, int) or not _count(rank) or alpha is None or alpha <= 0:
        raise AdapterError(f"{file}: r and lora_alpha must be numbers above zero", code="scale-invalid")
    odd = [f"{key} {_short(value)}" for key, value in config.items() if key not in KEYS or not KEYS[key](value)]
    if odd:
        raise AdapterError(
            f"{file} asks for {', '.join(odd)}: not a plain LoRA, and not computed here, so it is refused",
            ALTERED
            if not KEYS["init_lora_weights"](config.get("init_lora_weights", True))
            else "train or export it as a plain LoRA; without these keys it would be another adapter",
            code="lora-unsupported",
        )
    targets, layers = config.get("target_modules"), config.get("layers_to_transform")
    if targets is None:
        raise AdapterError(f"{file} has no target_modules: it does not say which layers it adapts")
    if isinstance(targets, str) and (layers is not None or config.get("layers_pattern") is not None):
        raise AdapterError(f"{file}: layers_to_transform and layers_pattern go with a list of target_modules")
    return LoraSettings(
        rank=rank,
        alpha=alpha,
        rslora=bool(config.get("use_rslora")),
        rank_pattern=dict(config.get("rank_pattern") or {}),
        alpha_pattern={key: float(value) for key, value in (config.get("alpha_pattern") or {}).items()},
        targets=_names(targets),
        exclude=_names(config.get("exclude_modules") or ()),
        layers=None if layers is None else tuple([layers] if isinstance(layers, int) else layers),
        layers_pattern=(text,) if isinstance(text := config.get("layers_pattern") or (), str) else tuple(text),
        dropout=float(config.get("lora_dropout") or 0),
        initial=config.get("init_lora_weights", True),
    )


ALTERED = (
    "its training changed the base's own weights too, which this folder does not hold: save it again with PEFT's"
    " path_initial_model_for_weight_conversion, which makes a plain LoRA of it"
)


def _names(value: Any) -> str | tuple[str, ...]:
    return value if isinstance(value, str) else tuple(value)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _flag(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _off(value: Any) -> bool:
    """Not used: null, false, or an empty list. An empty object is a variant with all its defaults (`kasa_config`)."""
    return value is None or value is False or value == []


def _pattern(value: Any) -> bool:
    """A regular expression that cannot take for ever: it comes with a stranger's adapter and meets every layer."""
    if not isinstance(value, str) or len(value) > LONGEST_PATTERN:
        return False
    try:
        re.compile(value)
    except (re.error, RecursionError, OverflowError):
        return False
    nested = re.search(r"\)\s*[*+{]", value) is not None
    return not nested and len(re.findall(r"[*+]|\{\d*,", value)) <= 4


def _choice(value: Any) -> bool:
    """A pattern, or a list of names."""
    if isinstance(value, list):
        return all(isinstance(name, str) for name in value)
    return value is None or _pattern(value)


def _patterns(value: Any) -> bool:
    return value is None or _pattern(value) or (isinstance(value, list) and all(map(_pattern, value)))


def _indices(value: Any) -> bool:
    return value is None or all(
        isinstance(index, int) and not isinstance(index, bool)
        for index in (value if isinstance(value, list) else [value])
    )


def _by_pattern(good: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def rule(value: Any) -> bool:
        whole = isinstance(value, dict) and all(_pattern(key) and good(number) for key, number in value.items())
        return value is None or whole

    return rule


def _above(value: Any) -> bool:
    amount = number(value)
    return amount is not None and amount > 0


def _share(value: Any) -> bool:
    share = number(value)
    return value is None or (share is not None and 0 <= share < 1)


def _initial(value: Any) -> bool:
    return any(value is known or (isinstance(known, str) and value == known) for known in INITIAL)


KEYS: dict[str, Callable[[Any], bool]] = {
    # What the matrices mean, computed as PEFT does.
    "peft_type": lambda value: value == "LORA",
    "r": _count,
    "lora_alpha": _above,
    "use_rslora": _flag,
    "rank_pattern": _by_pattern(_count),
    "alpha_pattern": _by_pattern(_above),
    "target_modules": _choice,
    "exclude_modules": _choice,
    "layers_to_transform": _indices,
    "layers_pattern": _patterns,
    "init_lora_weights": _initial,
    # Without effect on a trained adapter of linear layers.
    "lora_dropout": _share,
    "fan_in_fan_out": _flag,
    "eva_config": lambda value: value is None or isinstance(value, dict),
    "qalora_group_size": lambda value: value is None or _count(value),
    "megatron_core": _text,
    "inference_mode": _flag,
    "task_type": lambda value: value in (None, "CAUSAL_LM"),
    "auto_mapping": lambda value: value is None or isinstance(value, dict),
    "base_model_name_or_path": _text,
    "revision": _text,
    "peft_version": _text,
    # Understood only where they are not used.
    "bias": lambda value: value in (None, "none"),
    "loftq_config": lambda value: value is None or value == {},
    **dict.fromkeys(
        (
            "alora_invocation_tokens",
            "arrow_config",
            "corda_config",
            "ensure_weight_tying",
            "kasa_config",
            "layer_replication",
            "lora_bias",
            "lora_ga_config",
            "megatron_config",
            "modules_to_save",
            "monteclora_config",
            "target_parameters",
            "trainable_token_indices",
            "use_bdlora",
            "use_dora",
            "use_qalora",
            "velora_config",
        ),
        _off,
    ),
}
"""Every key that may stand in an adapter_config.json, with the rule for its value."""
