"""Values as TOML on one line, as a preset or `--set` writes them. Whole documents are written by tomlkit."""

from __future__ import annotations

import json
import re
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_value(value: Any) -> str:
    """`true`, `"text"`, `[1, 2]`, `{ key = 3 }`; what is None inside a list or a table is left out."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(item) for item in value if item is not None)}]"
    if isinstance(value, dict):
        inner = ", ".join(f"{_key(str(key))} = {toml_value(item)}" for key, item in value.items() if item is not None)
        return f"{{ {inner} }}" if inner else "{}"
    return _text(str(value))


def toml_lines(table: dict[str, Any], indent: str = "  ") -> list[str]:
    """Return a line for each key of a table that is not None: `  lr = 1e-05`."""
    return [f"{indent}{key} = {toml_value(value)}" for key, value in table.items() if value is not None]


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _text(text: str) -> str:
    """A basic string. JSON escapes all that TOML does but DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
