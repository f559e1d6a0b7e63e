"""The same server with one launch setting changed: its running limit B, its prefix cache, or any flag."""

from __future__ import annotations

from collections.abc import Sequence

from vlmconsole.engines.profile import Launch, ProfileError, ServerProfile
from vlmconsole.engines.registry import find_engine


def with_running_limit(profile: ServerProfile, limit: int) -> ServerProfile:
    """Return the profile with running limit B = `limit`. Raises ProfileError for a server that is not launched here."""
    engine = find_engine(profile.engine)
    if profile.running_limit == limit and (profile.launch is None or engine.writes_line):
        return profile
    launch = _launch(profile, f"running limit {limit}")
    changed = profile.model_copy(update={"running_limit": limit})
    if engine.writes_line:
        return changed
    argv = set_flag(launch.argv, engine.limit_flag, str(limit))
    return changed.model_copy(update={"launch": launch.model_copy(update={"argv": argv})})


def with_prefix_cache(profile: ServerProfile, on: bool) -> ServerProfile:
    """Return the profile with its prefix cache on or off. Raises ProfileError for a server that is not launched
    here.
    """
    launch = _launch(profile, f"its prefix cache {'on' if on else 'off'}")
    changed = profile.model_copy(update={"prefix_cache": on})
    engine = find_engine(profile.engine)
    if engine.writes_line:
        return changed
    argv = tuple(word for word in launch.argv if word not in engine.cache_flags)
    flag = engine.cache_flags[0 if on else 1]
    argv = (*argv, flag) if flag else argv
    return changed.model_copy(update={"launch": launch.model_copy(update={"argv": argv})})


def with_flag(profile: ServerProfile, flag: str, value: bool | int | float | str) -> ServerProfile:
    """Return the profile with one launch flag set: true is the flag alone, false leaves it out. Raises ProfileError."""
    launch = _launch(profile, f"{flag} {value}")
    where = "extra" if find_engine(profile.engine).writes_line else "argv"
    words: tuple[str, ...] = getattr(launch, where)
    if isinstance(value, bool):
        words = (*(word for word in words if word != flag), *((flag,) if value else ()))
    else:
        words = set_flag(words, flag, f"{value:g}" if isinstance(value, float) else str(value))
    return profile.model_copy(update={"launch": launch.model_copy(update={where: words})})


def set_flag(argv: Sequence[str], flag: str, value: str) -> tuple[str, ...]:
    """Return a launch line with `flag value`, in the place of an earlier one (`flag value` or `flag=value`)."""
    words: list[str] = []
    skip = False
    for index, word in enumerate(argv):
        if skip:
            skip = False
        elif word == flag:
            skip = index + 1 < len(argv) and not argv[index + 1].startswith("--")
        elif not word.startswith(f"{flag}="):
            words.append(word)
    return (*words, flag, value)


def _launch(profile: ServerProfile, wanted: str) -> Launch:
    if profile.launch is None or profile.ssh_host or find_engine(profile.engine).generic:
        raise ProfileError(
            f"server {profile.name} is not started by this lab, so it cannot be restarted with {wanted}:"
            " start it so by hand and name that server's profile",
            code="server-foreign",
        )
    return profile.launch
