"""How busy the client's machine was around a measurement: a remark beside its figures, never a refusal."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vlmconsole.system.machine import usable_cores
from vlmconsole.text.counts import many
from vlmconsole.text.numbers import number

#: what is said where a busy side is compared
BUSY_MEANS = (
    "Client and a local server are in that load; what else ran may make a change by itself: measure both again, in"
    " turn, on a quiet machine."
)


@dataclass(frozen=True)
class HostLoad:
    """Load averages of one minute: how many tasks ran or waited to run. Client and a local server are among them."""

    before: float | None
    after: float | None
    cores: int


def load_now() -> float | None:
    """Return the system's load average of one minute; None where it has none."""
    try:
        return round(os.getloadavg()[0], 2)
    except (OSError, AttributeError):
        return None


def host_load(before: float | None) -> HostLoad:
    """Return the load as it is now, beside what it was before."""
    return HostLoad(before, load_now(), usable_cores())


def busy(summary: Mapping[str, Any]) -> str:
    """Return a remark on a summary that was measured while more wanted to run than there are cores, else "".

    The load is the larger of before and after. Nothing is said where it was not recorded.
    """
    host = summary.get("host")
    if not isinstance(host, dict):
        return ""
    loads = {name: load for name in ("before", "after") if (load := number(host.get(name))) is not None}
    cores = number(host.get("cores"))
    if not loads or not cores or max(loads.values()) <= cores:
        return ""
    each = ", ".join(f"{load:.1f} {name}" for name, load in loads.items())
    return f"the machine was busy: load {each}, on {many(cores, 'core')}"
