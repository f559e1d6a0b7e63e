"""Waiting for a screen: until something is true, and until what works beside it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from textual.pilot import Pilot


async def until(true: Callable[[], bool], seconds: float = 60.0, every: float = 0.05) -> None:
    """Look `every` so many seconds whether it is true, for so many `seconds` at most."""
    for _ in range(int(seconds / every)):
        if true():
            return
        await asyncio.sleep(every)
    raise AssertionError("it did not become true")


async def settled(pilot: Pilot[Any], people: tuple[str, ...] = ()) -> None:
    """All workers have ended but those of the groups `people`, which wait for a person."""
    await pilot.pause()
    waited = [one for one in pilot.app.workers if one.group not in people]
    if waited:  # an empty list would mean all
        await pilot.app.workers.wait_for_complete(waited)
    await pilot.pause()
