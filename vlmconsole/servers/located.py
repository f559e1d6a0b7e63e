"""Where a profile's server is asked from here: the port of one that was started here, with its key, or a tunnel's."""

from __future__ import annotations

from urllib.parse import urlsplit

from vlmconsole.engines.profile import ServerProfile
from vlmconsole.runs.places import Places
from vlmconsole.servers import far, processes
from vlmconsole.servers.processes import Running


def launched_here(profile: ServerProfile) -> bool:
    """Whether the profile's server is one that this console starts."""
    return profile.launch is not None and not profile.ssh_host


def located(profile: ServerProfile, places: Places) -> ServerProfile:
    """The profile with the address of its running server, where one was started here; else as it is.

    One that names the address of a running server of this lab (`--base-url`, a second profile) is given its key.
    """
    running = processes.recorded(places, profile.name) if launched_here(profile) else _at_address(profile, places)
    return at_running(profile, running) if running is not None and running.alive else profile


def at_running(profile: ServerProfile, running: Running) -> ServerProfile:
    """The profile at a server that was started here, with the key of that start."""
    same = not launched_here(profile)  # then its own way of writing the address stays
    return profile.at(profile.base_url if same else running.base_url, access=running.access)


def _at_address(profile: ServerProfile, places: Places) -> Running | None:
    """The lab's own running server at the address that a profile gives."""
    if profile.ssh_host or not profile.loopback or profile.access.held is not None:
        return None
    port = urlsplit(profile.base_url).port
    names = (
        path.stem for path in sorted(processes.folder(places).glob("*.json")) if not path.name.endswith(".far.json")
    )
    found = (processes.recorded(places, name) for name in names)
    return next((one for one in found if one is not None and one.port == port and one.alive), None)


async def reachable(profile: ServerProfile, places: Places) -> ServerProfile:
    """The profile with the address that it is asked at from here: as `located`, or through the tunnel to its host.

    Raises SshError.
    """
    return await far.reached(profile, places) if far.is_far(profile) else located(profile, places)
