"""Paths that a person typed: what they mean, and whether a file may be written there."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from vlmconsole.errors import LabError


@dataclass(frozen=True)
class Located:
    """Marks a setting that may be a path or a name: where it is queued, a relative path is made absolute."""


#: a text that is so marked, as the type of a setting
PathOrName = Annotated[str, Located()]


@dataclass(frozen=True)
class LocatedFunction:
    """Marks a setting that may be `[python:]FILE.py:FUNCTION`: the file is made absolute like a path."""


FunctionOrName = Annotated[str, LocatedFunction()]


def named(text: str | Path) -> Path:
    """Return the path with `~` as the shell would read it. Raises LabError for a user that is not there."""
    try:
        return Path(text).expanduser()
    except RuntimeError:  # pathlib's, for ~nobody and for ~ without a home
        raise LabError(
            f"{str(text)[:200]} begins with ~ and no user here.", "Write the path out from /.", code="user-unknown"
        ) from None


def new_file(text: str | Path) -> Path:
    """Return where a file may be written: absolute, links followed. Raises LabError for folders, devices and pipes.

    Files are replaced by renaming: onto a device (`/dev/stdout` is one, or a link to one) that would put a file in
    its place, and onto a link it would cut the link.
    """
    refused = LabError(
        f"{str(text)[:200]} is no file that could be replaced.", "Name a new file.", code="file-irreplaceable"
    )
    path = named(text).absolute()
    if path.parts[:2] in (("/", "dev"), ("/", "proc"), ("/", "sys")) or not path.name:
        raise refused
    try:
        path = path.resolve()
        if path.exists() and not path.is_file():
            raise refused
    except OSError as error:
        raise LabError(
            f"{str(text)[:200]} cannot be written: {error.strerror}.", "Name another file.", code="path-unwritable"
        ) from None
    return path
