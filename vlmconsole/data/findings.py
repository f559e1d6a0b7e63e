"""Findings: what a check looked at, what it found, and where. Shared by dataset checks and audits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vlmconsole.data.manifest import MANIFEST
from vlmconsole.text.counts import many

State = Literal["ok", "wrong", "not verifiable"]
SHOWN = 5  # places named in the text; `places` holds all


@dataclass(frozen=True)
class Finding:
    """One item of a checklist. `text` is a sentence for people, `places` are the samples or files that are wrong."""

    name: str
    state: State
    text: str
    places: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"name": self.name, "state": self.state, "text": self.text, "places": list(self.places)}


def finding(name: str, good: str, wrong: Iterable[str], what: str = "") -> Finding:
    """`ok` with the sentence `good` when nothing is `wrong`; else the wrong places, the first few in the text."""
    places = tuple(wrong)
    if not places:
        return Finding(name, "ok", good)
    more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
    text = f"{len(places)} wrong{' (' + what + ')' if what else ''}: {'; '.join(places[:SHOWN])}{more}"
    return Finding(name, "wrong", text, places)


def files_finding(folder: Path, listed: Mapping[str, Mapping[str, Any]]) -> Finding:
    """Compare a dataset's files with the hashes that its manifest lists; `listed`: file name → its entry."""
    wrong = []
    for name, entry in listed.items():
        path = folder / name
        if Path(name).name != name or not path.is_file():
            wrong.append(f"{name} is missing")
            continue
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != entry.get("sha256"):
                wrong.append(f"{name} was changed after it was made")
    wrong += [
        f"{path.name} is in no manifest"
        for path in sorted(folder.iterdir())
        if path.name != MANIFEST and path.name not in listed
    ]
    return finding("files", f"{many(len(listed), 'file')} as they were made", wrong)
