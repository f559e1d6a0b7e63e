"""From an adapter's name to what a server's request must carry, with the base checked first."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from vlmconsole.engines.adapter_choice import SelectedAdapter
from vlmconsole.engines.registry import find_engine
from vlmconsole.models.door import can_render, door
from vlmconsole.models.template import TemplateError
from vlmconsole.runs.places import Places
from vlmconsole.training.adapters.config import SeveralAdaptersError
from vlmconsole.training.adapters.convert import served_by_mlx, served_by_sglang
from vlmconsole.training.adapters.provenance import other_prompt
from vlmconsole.training.adapters.store import Adapter, AdapterError, check_fits, find_adapter

if TYPE_CHECKING:
    from vlmconsole.engines.profile import ServerProfile

NONE = ("", "none", "base")
"""Names that mean the bare base."""


def select(
    name: str,
    profile: ServerProfile,
    precision: str | None,
    places: Places,
    *,
    other_base: bool = False,
    find: Callable[[], Adapter] | None = None,
) -> SelectedAdapter | None:
    """Return the adapter `name` for the server of `profile` (None for the bare base), checked and, for MLX, converted.

    precision: of the base as the server reads it back. `find`: for one who has looked the name up. A server on another
    machine, or one whose adapters this lab does not know, is asked for `name` as it stands, and the conditions say that
    nothing was checked. Reads the base's weights the first time (seconds for a large one). Raises AdapterError.
    """
    if name.strip().lower() in NONE:
        return None
    rule = find_engine(profile.engine).adapter_rule
    if rule == "none":
        raise AdapterError(
            f"server {profile.name} is a generic one and has no adapters",
            "name the model that you want instead",
            code="adapter-unsupported",
        )
    if profile.route != "loopback":
        return SelectedAdapter(name, name, notes=(f"adapter {name} lies on the server's machine: not checked here",))
    try:
        adapter = find() if find is not None else find_adapter(places, name)
    except AdapterError as error:
        if rule == "by folder" or isinstance(error, SeveralAdaptersError):
            raise
        return SelectedAdapter(name, name, notes=(f"adapter {name} is the server's own: not checked here",))
    return _checked(adapter, profile, precision, places, other_base)


def lab_adapters_only(profile: ServerProfile) -> bool:
    """Return whether its server takes only adapters of this lab: it loads folders of this machine, and none by a
    name.
    """
    here = profile.route == "loopback" or not (profile.base_url or profile.ssh_host)
    return here and find_engine(profile.engine).adapter_rule == "by folder"


def _prompt(adapter: Adapter, base: Path) -> list[str]:
    """What is to be said of the prompt form, as far as the base's own template is what the server renders."""
    if not can_render():
        return []
    try:
        asked = other_prompt(adapter.provenance, door(base).prompt_sha256)
    except TemplateError:
        return []
    return [f"adapter {adapter.name} {asked}"] if asked else []


def _checked(
    adapter: Adapter, profile: ServerProfile, precision: str | None, places: Places, other_base: bool
) -> SelectedAdapter:
    base, notes = profile.model_dir(), []
    if base is None:
        if not other_base:
            raise AdapterError(
                f"the model of server {profile.name} is not in a folder here, so it cannot be compared with the base"
                f" of adapter {adapter.name}",
                "to use it all the same, say so (--other-base)",
                code="base-unknown",
            )
        notes.append(f"adapter {adapter.name}: its base was not compared with the server's model")
    else:
        label = check_fits(adapter, base, precision, override=other_base)
        if label:
            notes.append(f"adapter {adapter.name} on another base: {label}")
        notes += _prompt(adapter, base)
    engine = find_engine(profile.engine)
    if engine.adapter_rule == "by folder":
        folder = served_by_mlx(adapter, places.cache, base)
        return SelectedAdapter(adapter.name, str(folder), adapter.sha256, folder, tuple(notes))
    if adapter.format == "mlx":
        raise AdapterError(f"{adapter.name} is in MLX's format, which {engine.label} cannot load")
    # The hash belongs to the name: the server keeps adapters by name and would go on with an older one's weights.
    short = re.sub(r"[^A-Za-z0-9_-]+", "-", adapter.name).strip("-")[:48]
    selector = f"{short}-{adapter.identity[:12]}"
    folder = served_by_sglang(adapter, places.cache, base)
    return SelectedAdapter(adapter.name, selector, adapter.sha256, folder, tuple(notes))
