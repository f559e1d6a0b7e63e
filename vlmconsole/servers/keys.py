"""The key of a server that we start: random at each start, in a file of its owner's, given by environment alone.

Never in a launch line (every user of a machine reads those), a log, or a run folder.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from vlmconsole.runs.folder import write_atomic


def new_key(folder: Path, name: str) -> tuple[str, Path]:
    """Return a key and the file that holds it, of a name that no other start has had; those of earlier starts go."""
    forget(folder, name)
    key, path = secrets.token_urlsafe(32), folder / f"{name}.{secrets.token_hex(4)}.key"
    write_atomic(path, key + "\n")
    return key, path


def forget(folder: Path, name: str) -> None:
    """Remove the keys of a server's earlier starts."""
    for old in folder.glob(f"{name}.*.key"):
        if len(old.name) == len(f"{name}.01234567.key"):  # a server `a` has no say in one that is called `a.b`
            old.unlink(missing_ok=True)
