"""The Python that runs a server's launch line."""

from __future__ import annotations

import shutil
import sys

from vlmconsole.engines.profile import ProfileError
from vlmconsole.runs.places import Places
from vlmconsole.system.typed_paths import named


def interpreter_path(wanted: str, places: Places) -> str:
    """Return a Python by its profile name: "" this one, "env:NAME" a made environment, else a path or a command."""
    if not wanted:
        return sys.executable
    if wanted.startswith("env:"):
        made = places.environments / wanted.removeprefix("env:") / "bin" / "python"
        if not made.exists():
            raise ProfileError(
                f"the environment {wanted[4:]!r} is not there: vlmconsole env make {wanted[4:]}",
                code="environment-missing",
            )
        return str(made)
    executable = shutil.which(str(named(wanted)))
    if executable is None:
        raise ProfileError(f"launch.interpreter: {wanted} is not a program that can be run", code="program-missing")
    return executable
