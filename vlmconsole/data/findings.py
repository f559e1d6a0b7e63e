"""Findings: what a check looked at, what it found, and where. Shared by dataset checks and audits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

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
