"""The adapter that a question names: how its server selects it, and how its answer's conditions call it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

UNKNOWN = "unknown"
"""The adapter in conditions of a server that cannot be told which one to use: it may go on with anybody's."""


@dataclass(frozen=True)
class SelectedAdapter:
    """`selector` is what the request carries: a folder for mlx-vlm, a loaded adapter's name elsewhere.

    `sha256` is of the weights it was made from; None for one that only the server knows. `folder` is what a server on
    this machine can load it from. `notes` go into the conditions: another base by override, a verified effect.
    """

    name: str
    selector: str
    sha256: str | None = None
    folder: Path | None = None
    notes: tuple[str, ...] = ()

    @property
    def said(self) -> str:
        """Name and hash, as conditions give it: two adapters of one name are not the same condition."""
        return f"{self.name} sha256:{self.sha256}" if self.sha256 else self.name


def selected(adapter: str | SelectedAdapter | None) -> SelectedAdapter | None:
    """Return a bare name or path as a selection of which nothing else is known."""
    return SelectedAdapter(adapter, adapter) if isinstance(adapter, str) else adapter
