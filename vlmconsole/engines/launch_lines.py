"""The words of a launch line: its flags, its places to be filled in, and whether they may be started at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vlmconsole.engines.profile import ProfileError, ServerProfile
from vlmconsole.models.programs import ProgramsError, refuse_programs


def flags_of(argv: Sequence[str]) -> dict[str, str]:
    """Return the flags of a launch line by name, as text: `--tp-size 1` → {"tp-size": "1"}; one without a value →
    "true".
    """
    flags: dict[str, str] = {}
    for index, word in enumerate(argv):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        following = argv[index + 1] if index + 1 < len(argv) else "--"
        flags[name] = value if equals else ("true" if following.startswith("--") else following)
    return flags


def filled(word: str, values: Mapping[str, str]) -> str:
    """Return a word with its places (`{port}`, `{model}`) filled in."""
    for name, value in values.items():
        word = word.replace("{" + name + "}", value)
    return word


def fixed_port(profile: ServerProfile) -> int | None:
    """Return the port that the launch line names itself, None when it takes any free one."""
    named = flags_of(profile.launch.argv if profile.launch is not None else ()).get("port", "")
    return int(named) if named.isdigit() else None


def refuse_untrusted(profile: ServerProfile) -> None:
    """Raise ProfileError when its model's folder would run programs that neither the profile's key nor its launch line
    allows. Models on other machines are not looked into.
    """
    folder = profile.model_dir()
    words = profile.launch.words if profile.launch is not None else ()
    if folder is None or profile.trust_remote_code or "trust-remote-code" in flags_of(words):
        return
    try:
        refuse_programs(folder)
    except ProgramsError as error:
        raise ProfileError(f"profile {profile.name}: {error.message}", error.hint) from None
