"""What a server has cost so far: its profile's price by the hour, over the time that it is known to run."""

from __future__ import annotations

from vlmconsole.engines.profile import ServerProfile
from vlmconsole.servers.status import ServerStatus


def cost_said(profile: ServerProfile, status: ServerStatus, now: float) -> str:
    """Return one sentence; "" for a profile without a price. `now`: wall-clock seconds.

    A machine that is paid by the hour costs whether a server runs on it or not: that is said when none does.
    """
    price = profile.price_per_hour
    if not price:
        return ""
    unit = f" {profile.currency}" if profile.currency else ""
    rate = f"{price:g}{unit} an hour"
    if status.state in ("stopped", "ended"):
        where = "instance" if profile.ssh_host else "machine"
        return f"GPU memory released, {where} still billed: {rate}"
    if status.since is None:
        return f"{rate}; how long it runs is not known here"
    hours = max(0.0, now - status.since) / 3600
    return f"{hours * price:.2f}{unit} in {hours:.1f} h at {rate}"
