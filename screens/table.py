"""The screens that exist, in the order of their keys. A screen that is not built is not listed."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import Any

from textual.screen import Screen


@dataclass(frozen=True)
class ScreenEntry:
    """`number` gives its keys (F1 and 1); `place` is module:class, imported when the screen is first opened."""

    number: int
    name: str
    title: str
    place: str
    twin: str


SCREENS: tuple[ScreenEntry, ...] = (
    ScreenEntry(1, "chat", "Chat", "vlmconsole.screens.chat.screen:ChatScreen", "vlmconsole chat"),
    ScreenEntry(2, "gauges", "Gauges", "vlmconsole.screens.gauges.screen:GaugesScreen", "vlmconsole gauges"),
    ScreenEntry(3, "jobs", "Jobs", "vlmconsole.screens.jobs.screen:JobsScreen", "vlmconsole jobs"),
    ScreenEntry(4, "gates", "Gates", "vlmconsole.screens.gates.screen:GatesScreen", "vlmconsole gates"),
    ScreenEntry(5, "runs", "Runs", "vlmconsole.screens.runs.screen:RunsScreen", "vlmconsole runs"),
    ScreenEntry(6, "servers", "Servers", "vlmconsole.screens.servers.screen:ServersScreen", "vlmconsole servers"),
    ScreenEntry(7, "data", "Data", "vlmconsole.screens.data.screen:DataScreen", "vlmconsole data"),
)


def load_screen(name: str) -> Screen[Any]:
    """Return a new screen of that name."""
    made: Screen[Any] = import_screen(name)()
    return made


def import_screen(name: str) -> Any:
    """Return the class of that screen. The first time it imports for seconds on a busy machine: not for the event
    loop.
    """
    module, _, attribute = _entry(name).place.partition(":")
    return getattr(importlib.import_module(module), attribute)


def is_imported(name: str) -> bool:
    """Return whether it can be shown at once. A module that is being imported does not hold its class yet."""
    module, _, attribute = _entry(name).place.partition(":")
    return hasattr(sys.modules.get(module), attribute)


def _entry(name: str) -> ScreenEntry:
    return next(entry for entry in SCREENS if entry.name == name)
