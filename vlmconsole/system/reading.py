"""Files that people write or bring along, read with care: one way for TOML and for JSON, and one kind of error.

Only ordinary files are read (a FIFO would never end), of a size and a nesting that a person's file can have.
"""

from __future__ import annotations

import json
import os
import stat
import tomllib
from pathlib import Path
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.text.sizes import size

LARGEST_TOML = 4 * 1024**2  # bytes
LARGEST_JSON = 64 * 1024**2  # a frozen plan names thousands of pictures
DEEPEST = 100  # tables and lists within each other


class UnreadableError(LabError, ValueError):
    """A file cannot be read, or is not what its name says; the message names it and tells why.

    A ValueError too: who takes any unreadable file as none need not know this kind. `missing`: there is no such file.
    """

    exit_status = 2

    def __init__(self, message: str, *, missing: bool = False, code: str = "") -> None:
        super().__init__(message, code=code)
        self.missing = missing


def read_bytes(path: Path, most: int = LARGEST_JSON) -> bytes:
    """Return what is in an ordinary file of at most `most` bytes. Raises UnreadableError, at once for a FIFO or a
    device.
    """
    try:
        # A FIFO without a writer would block even its opening.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL in it
        why = getattr(error, "strerror", None) or str(error)
        missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        code = "file-missing" if missing else "file-unreadable"
        raise UnreadableError(f"{path} cannot be read: {why}", missing=missing, code=code) from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise UnreadableError(
            f"{path} cannot be read: it is {_kind(mode)}, not an ordinary file", code="file-irregular"
        )
    with os.fdopen(descriptor, "rb") as file:
        try:
            data = file.read(most + 1)
        except OSError as error:
            raise UnreadableError(f"{path} cannot be read: {error.strerror}", code="file-unreadable") from None
    if len(data) > most:
        raise UnreadableError(f"{path} has more than {size(most)}: it is no such file", code="file-too-large")
    return data


def read_text(path: Path, most: int = LARGEST_TOML) -> str:
    """Return the text of an ordinary file. Raises UnreadableError, also for what is no UTF-8."""
    try:
        return read_bytes(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableError(
            f"{path} is no text in UTF-8: {error.reason} at byte {error.start}", code="encoding-invalid"
        ) from None


def read_toml(path: Path) -> dict[str, Any]:
    """Return the table in a TOML file. Raises UnreadableError."""
    return toml_table(read_text(path), str(path))


def read_json(path: Path) -> Any:
    """Return the value in a JSON file. Raises UnreadableError."""
    return json_value(read_text(path, LARGEST_JSON), str(path))


def toml_table(text: str, where: str) -> dict[str, Any]:
    """`text` as TOML; `where` names it in the UnreadableError."""
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise UnreadableError(f"{where} is no valid TOML: {_TOO_DEEP}", code="nesting-too-deep") from None
    except ValueError as error:  # also for a number of thousands of digits
        raise UnreadableError(f"{where} is no valid TOML: {error}", code="toml-invalid") from None
    if _too_deep(table):
        raise UnreadableError(f"{where} is no valid TOML: {_TOO_DEEP}", code="nesting-too-deep")
    return table


def json_value(text: str | bytes, where: str) -> Any:
    """`text` as JSON; `where` names it in the UnreadableError."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise UnreadableError(f"{where} is no valid JSON: {_TOO_DEEP}", code="nesting-too-deep") from None
    except ValueError as error:
        raise UnreadableError(f"{where} is no valid JSON: {error}", code="json-invalid") from None
    if _too_deep(value):
        raise UnreadableError(f"{where} is no valid JSON: {_TOO_DEEP}", code="nesting-too-deep")
    return value


_TOO_DEEP = f"its tables and lists are nested more than {DEEPEST} deep"


def _too_deep(value: Any) -> bool:
    """Looked at level by level: whoever walks the value afterwards may do so by recursion."""
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [member for member in level if isinstance(member, dict | list)]
        if not level:
            return False
        level = [inner for member in level for inner in (member.values() if isinstance(member, dict) else member)]
    return True


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"))
    return next((label for fits, label in kinds if fits(mode)), "a device")
