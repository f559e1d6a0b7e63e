"""The shipped presets, and the one way to read one of them by its name or a file of the user's own by its path."""

from __future__ import annotations

import difflib
from importlib.resources import files
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.system.reading import UnreadableError, read_toml, toml_table
from vlmconsole.system.typed_paths import named


def preset_names(group: str) -> list[str]:
    """The names of the shipped TOML files of a group (a folder here, such as `data` or `gates`), sorted."""
    folder = files("vlmconsole.presets") / group
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def read_preset(group: str, name: str, what: str, error_type: type[LabError]) -> dict[str, Any]:
    """The table of the preset called `name`, or of the TOML file at that path; `name` is filled in where it lacks.

    `what` is the kind of thing as people call it. Raises `error_type`: unreadable, unknown (with the nearest name), or
    no TOML.
    """
    path = named(name)
    if name.endswith(".toml"):
        try:
            return {"name": path.stem, **read_toml(path)}
        except UnreadableError as error:
            raise error_type(error.message) from None
    if name in (names := preset_names(group)):
        text = (files("vlmconsole.presets") / group / f"{name}.toml").read_text("utf-8")
        return {"name": name, **toml_table(text, name)}
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"Did you mean {close[0]}?" if close else f"There are: {', '.join(names)}."
    raise error_type(f"No {what} is called {name!r}.", hint)
