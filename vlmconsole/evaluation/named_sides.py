"""The settings of an evaluation from the few names that a person gives: what is tested, and what it stands against."""

from __future__ import annotations

from typing import Any

from vlmconsole.engines.profile import find_profile
from vlmconsole.errors import LabError
from vlmconsole.runs.places import Places
from vlmconsole.system.typed_paths import named

BASE = "base"  # in place of an adapter's name: the model without one


class SidesError(LabError):
    """What is tested, or stands against it, cannot be meant; the message names it."""

    exit_status = 2


def sides_of(places: Places, *, server: str, base: str, adapter: str, against: str) -> dict[str, Any]:
    """Return the settings of `EvaluateSettings` that say who answers. Raises SidesError.

    `against` is a server profile, an adapter, a model folder (or asset:NAME), or BASE; "": one side alone. An adapter
    on a server stands against the same server's others.
    """
    if server and base:
        raise SidesError("A server answers, or a base model in this process: give one of the two.", code="sides-both")
    settings: dict[str, Any] = {"backend": "server", "server": server} if server else {"base": base}
    if not against:
        return settings | {"paired": False, "before_adapter": adapter}
    settings |= {"paired": True, "after_adapter": adapter}
    if against == BASE:
        if not adapter:
            raise SidesError(
                "The base would stand against itself.", "Name what is tested: --adapter X.", code="sides-same"
            )
        return settings
    if server and _is_profile(against, places):
        return settings | {"server": against, "after_server": server}
    if _is_adapter(against, places):
        return settings | {"before_adapter": against}
    if against.startswith("asset:") or (named(against) / "config.json").is_file():
        return settings | {"before_model": against} | ({"after_model": base} if base and not adapter else {})
    if _is_profile(against, places):
        raise SidesError(
            f"{against} is a server, and the tested model would answer in this process.",
            "Name the tested server: --server A.",
            code="sides-unlike",
        )
    raise SidesError(
        f"{against} is no adapter, no model folder" + (" and no server profile." if server else "."),
        "vlmconsole adapters list and servers list show them; `base` is the model without an adapter.",
        code="against-unknown",
    )


def _is_profile(name: str, places: Places) -> bool:
    try:
        find_profile(name, places.servers)
    except LabError:
        return False
    return True


def _is_adapter(name: str, places: Places) -> bool:
    from vlmconsole.training.adapters.store import AdapterError, find_adapter

    try:
        find_adapter(places, name)
    except AdapterError as error:
        if error.code != "adapter-missing":
            raise  # it means an adapter, and which one, or why not, is what its reader must know
        return False
    return True
