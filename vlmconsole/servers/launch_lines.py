"""The words that start a profile's server, and the settings that they ask for."""

from __future__ import annotations

import shlex

from vlmconsole.engines import mlx
from vlmconsole.engines.effective import flags_of
from vlmconsole.engines.profile import ProfileError, ServerProfile
from vlmconsole.models.programs import ProgramsError, refuse_programs
from vlmconsole.runs.places import Places
from vlmconsole.servers import far, processes


def command(profile: ServerProfile, places: Places, port: int) -> list[str]:
    """The words that start it on that port. Raises ProfileError, also for a model with programs of its own."""
    assert profile.launch is not None
    words = list(profile.launch.argv)
    refuse_untrusted(profile)
    if not words:
        if profile.engine == "mlx":
            return mlx.command(profile, places, port)
        raise ProfileError(f"profile {profile.name}: launch.argv is empty; it must be the words that start the server")
    values = {"port": str(port), "model": str(profile.model_dir() or profile.model)}
    words = [_fill(word, values) for word in words] + list(profile.launch.extra)
    if words[0] in ("python", "python3"):
        words[0] = processes.interpreter_path(profile.launch.interpreter, places)
    return words


def refuse_untrusted(profile: ServerProfile) -> None:
    """Raise ProfileError when its model's folder would run programs that neither the profile's key nor its launch line
    allows. Models on other machines are not looked into.
    """
    folder = profile.model_dir()
    words = (*profile.launch.argv, *profile.launch.extra) if profile.launch is not None else ()
    if folder is None or profile.trust_remote_code or "trust-remote-code" in flags_of(words):
        return
    try:
        refuse_programs(folder)
    except ProgramsError as error:
        raise ProfileError(f"profile {profile.name}: {error.message}", error.hint) from None


def _fill(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace("{" + name + "}", value)
    return word


def environment(profile: ServerProfile, places: Places) -> dict[str, str]:
    """What its engine wants on top of ours."""
    return mlx.environment(profile, places) if profile.engine == "mlx" else {}


def fixed_port(profile: ServerProfile) -> int | None:
    """The port that the launch line names itself, None when it takes any free one."""
    assert profile.launch is not None
    named = flags_of(profile.launch.argv).get("port", "")
    return int(named) if named.isdigit() else None


def launch_line(profile: ServerProfile, places: Places) -> str:
    """The command that starts it, as one would type it; "" when this lab does not start it. Raises ProfileError."""
    if profile.launch is None:
        return ""
    if far.is_far(profile):
        words, place = far.command(profile)
        return f"on {profile.ssh_host}, in {place}: {shlex.join(words)}"
    port = fixed_port(profile)
    return shlex.join(command(profile, places, port or 0)).replace("--port 0", "--port PORT")


def wanted_settings(profile: ServerProfile) -> dict[str, str]:
    """What the profile asks for, by launch-flag name, to stand beside what is read back."""
    if profile.launch is None:
        return {}
    model = str(profile.model_dir() or profile.model)
    asked = flags_of([_fill(word, {"model": model}) for word in (*profile.launch.argv, *profile.launch.extra)])
    if profile.engine == "mlx":
        asked |= {
            "max-num-seqs": str(profile.running_limit or 4),
            "apc-enabled": str(bool(profile.prefix_cache)).lower(),
        }
    # Any free port is what such a launch line asks for.
    return {flag: value for flag, value in asked.items() if value != "{port}"}
