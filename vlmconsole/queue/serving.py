"""The queued job that serves a profile."""

from vlmconsole.jobs.presets import Preset
from vlmconsole.queue.adding import plan
from vlmconsole.queue.model import NewJob
from vlmconsole.runs.places import Places


def server_job(profile: str, places: Places, keep: bool = False) -> NewJob:
    """Return a job of kind `serve` for `profile`; `keep`: it stays until stopped. Raises LabError."""
    preset = Preset(f"serve-{profile}", "serve", f"Server {profile}", {"profile": profile}, queue={"keep": keep})
    return plan(preset, [], places)[0].job
