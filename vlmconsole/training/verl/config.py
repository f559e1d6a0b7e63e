"""Overrides held against the installed verl before anything is launched: unknown, dead and mistyped keys.

Hydra refuses unknown keys by itself. It does not notice a key that stands in the configuration and that no code
reads any more; such a key would be accepted and do nothing, e.g. leave the vision tower unfrozen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Any

from vlmconsole.errors import LabError

#: Parts of verl that declare keys; there, only reading one off another object (`config.key`) counts as use.
DECLARING = ("workers/config", "trainer/config", "trainer/config.py")
_PLAIN = re.compile(r"[A-Za-z_][\w.]*=", re.ASCII)
#: An empty table whose keys are another library's (the model's own configuration): there, keys are added.
_OPEN = re.compile(r"\+[A-Za-z_][\w.]*\.override_config\.\w+=", re.ASCII)


class VerlError(LabError):
    """verl is missing, refuses the settings, or would silently ignore one; the message names the key."""


@dataclass(frozen=True)
class Verl:
    """An installed verl: its package folder and version."""

    folder: Path
    version: str


def installed() -> Verl:
    """Return the verl that this interpreter would import, found without importing it. Raises VerlError."""
    spec = util.find_spec("verl")
    places = list(spec.submodule_search_locations or []) if spec else []
    if not places:
        raise VerlError(
            "verl is not installed in this environment.",
            "Build it: vlmconsole env make verl-0.6.1; run the job there.",
            code="library-missing",
        )
    try:
        version = metadata.version("verl")
    except metadata.PackageNotFoundError:
        version = "unknown"
    return Verl(Path(places[0]), version)


def check(overrides: list[str], verl: Verl) -> dict[str, Any]:
    """Return the whole configuration as verl would see it. Raises VerlError naming what is wrong, all dead keys at
    once.
    """
    for item in overrides:
        if not _PLAIN.match(item) and not _OPEN.match(item):
            raise VerlError(
                f"“{item}” is no plain key=value.",
                "Keys are set, not added (+) or removed (~).",
                code="setting-invalid",
            )
    dead = dead_keys([_key(item) for item in overrides], verl.folder)
    if dead:
        raise VerlError(
            f"verl {verl.version} accepts {', '.join(dead)} and does nothing with it: no code reads the key.",
            "The run would not be what the preset says; use verl 0.6.1 (vlmconsole env make verl-0.6.1).",
            code="setting-dead",
        )
    plain, made = _compose([], verl), _compose(overrides, verl)
    for item in overrides:
        key = _key(item)
        usual, given = _at(plain, key), _at(made, key)
        if not _fits(usual, given):
            raise VerlError(
                f"{key} is {given!r}, where verl {verl.version} has {usual!r}: another type.", code="setting-invalid"
            )
    return made


def _key(item: str) -> str:
    return item.removeprefix("+").partition("=")[0]


def dead_keys(keys: Iterable[str], folder: Path) -> list[str]:
    """Return the keys whose last name no Python file of verl uses: the files that declare it are not enough."""
    wanted = {key: key.rpartition(".")[2] for key in keys}
    missing = set(wanted.values())
    for path in folder.rglob("*.py"):
        if not missing:
            break
        inside = path.relative_to(folder).as_posix()
        pattern = r"(?<!self)\.(\w+)" if inside.startswith(DECLARING) else r"\w+"
        missing -= set(re.findall(pattern, path.read_text("utf-8", "replace")))
    return sorted(key for key, name in wanted.items() if name in missing)


def _compose(overrides: list[str], verl: Verl) -> dict[str, Any]:
    # Hydra is verl's dependency, not ours: it is found in verl's environment or not at all.
    try:
        hydra, faults = import_module("hydra"), import_module("hydra.errors")
        omega, omega_faults = import_module("omegaconf").OmegaConf, import_module("omegaconf.errors")
    except ImportError as error:
        raise VerlError(f"{error.name} is missing, which verl brings along.", "Build the environment again.") from None
    folder = verl.folder / "trainer" / "config"
    if not (folder / "ppo_trainer.yaml").is_file():
        raise VerlError(f"{folder} holds no ppo_trainer.yaml: this verl ({verl.version}) is built otherwise.")
    try:
        with hydra.initialize_config_dir(config_dir=str(folder), version_base=None):
            made = omega.to_container(hydra.compose("ppo_trainer", overrides), resolve=False)
    except (faults.HydraException, omega_faults.OmegaConfBaseException) as error:
        message = " ".join(str(error).split())[:300]
        raise VerlError(f"verl {verl.version} refuses the settings: {message}") from None
    if not isinstance(made, dict):
        raise VerlError(f"verl {verl.version} makes no table of its settings.")
    return {str(key): value for key, value in made.items()}


def _at(made: dict[str, Any], key: str) -> Any:
    value: Any = made
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _fits(usual: Any, given: Any) -> bool:
    if usual is None or given is None or (isinstance(usual, str) and usual.startswith("${")):
        return True
    if isinstance(usual, bool) or isinstance(given, bool):
        return isinstance(usual, bool) and isinstance(given, bool)
    if isinstance(usual, int | float):
        return isinstance(given, int | float)
    if isinstance(usual, list | str):  # one file or several: verl takes both
        return isinstance(given, list | str)
    return isinstance(given, type(usual))
