"""Which engines there are: the modules of `engines.supported`. Each is imported when first asked for."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING, cast

from vlmconsole.engines import supported

if TYPE_CHECKING:
    from vlmconsole.engines.engine import Engine

GENERIC = "openai"
"""The engine of a server of which only the address is known."""


def engine_names() -> list[str]:
    """Return every name that a profile's `engine` may have, sorted; nothing is imported."""
    return sorted(module.name for module in pkgutil.iter_modules(supported.__path__))


def find_engine(name: str) -> Engine:
    """Return the engine called `name`, one of `engine_names`."""
    return cast("Engine", import_module(f"{supported.__name__}.{name}").ENGINE)


def engines() -> list[Engine]:
    """Return every engine, in the order of the names."""
    return [find_engine(name) for name in engine_names()]
