"""Going on from an earlier attempt: its answers count only when everything that they depend on is the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vlmconsole.evaluation.items import Item
from vlmconsole.runs.folder import RunFolder

ATTEMPT = "attempt.json"  # per side: the hash of its conditions, and the facts inside it


class Changed(Exception):
    """The conditions are not those of the earlier attempt; the message names what differs, for people."""


def attempts(run: RunFolder | None) -> Iterator[RunFolder]:
    """Yield an attempt and those before it, newest first. One that was ended before its first answer has nothing to
    give.
    """
    seen: set[Path] = set()
    while run is not None and run.path not in seen:
        seen.add(run.path)
        yield run
        earlier = run.job().get("earlier")
        run = RunFolder(Path(earlier)) if earlier else None


class Earlier:
    """The answers that earlier attempts of the same evaluation have made, newest attempt first."""

    def __init__(self, run: RunFolder) -> None:
        self._attempts = list(attempts(run))

    def _found(self, side: str) -> RunFolder | None:
        for run in self._attempts:
            if side in run.read_json(ATTEMPT, {}) and any(True for _ in run.read_jsonl(f"{side}.jsonl")):
                return run
        return None

    def name(self, side: str) -> str:
        """Return the attempt whose answers of that side count."""
        run = self._found(side)
        return run.name if run else ""

    def samples(
        self, side: str, items: list[Item], sha256: str, facts: dict[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Return the whole answers of one side to these items, each id once; failed requests are left to be asked
        again.

        Raises Changed when they were made under another condition hash.
        """
        run = self._found(side)
        if run is None:
            return []
        known = run.read_json(ATTEMPT, {}).get(side)
        if not isinstance(known, dict) or known.get("sha256") != sha256:
            what = differing(known.get("facts") if isinstance(known, dict) else None, facts)
            raise Changed(f"{run.name} answered {side} under other conditions ({what})")
        asked = {item.id: item for item in items}
        kept: dict[str, dict[str, Any]] = {}
        for line in run.read_jsonl(f"{side}.jsonl"):
            item = asked.get(str(line.get("id")))
            if item is not None and line.get("http_ok") and item.id not in kept and _same(line, item):
                kept[item.id] = line
        return list(kept.values())


def _same(line: dict[str, Any], item: Item) -> bool:
    """Whether a line answers this question about this picture."""
    return line.get("picture_sha256") == item.picture_sha256 and line.get("prompt_sha") == item.prompt_sha


def differing(before: Any, after: dict[str, Any] | None) -> str:
    """Return the facts that are not the same, by name."""
    if not isinstance(before, dict) or after is None:
        return "which ones was not recorded"
    names = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    return ", ".join(names) if names else "what is asked"
