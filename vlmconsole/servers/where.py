"""Where a profile's server lives: here, on another machine, or at an address that is only given."""

from __future__ import annotations

from vlmconsole.engines.profile import ServerProfile
from vlmconsole.runs.places import Places
from vlmconsole.servers.far import Far
from vlmconsole.servers.given import Given
from vlmconsole.servers.here import Here
from vlmconsole.servers.server import Server


def server_of(profile: ServerProfile, places: Places) -> Server:
    """Return the server that a profile describes."""
    if profile.ssh_host and profile.loopback:
        return Far(profile, places)
    if profile.launch is not None and not profile.ssh_host:
        return Here(profile, places)
    return Given(profile, places)
