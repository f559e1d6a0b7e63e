"""Which split a file or folder stands for by its name, and the role of a split."""

from __future__ import annotations

import re

from vlmconsole.data.recipe import Role

_WORDS: dict[str, Role] = {
    "train": "train", "training": "train", "dev": "dev", "val": "dev", "valid": "dev", "validation": "dev",
    "eval": "dev", "test": "test", "testing": "test",
}  # fmt: skip
_FIRST = re.compile(r"[a-zA-Z]+")


def split_named(stem: str) -> str:
    """Return the split in a name such as `train-00000-of-00002` or `validation`; "" where it names none."""
    word = _FIRST.match(stem)
    return word[0].casefold() if word and word[0].casefold() in _WORDS else ""


def role_of(split: str) -> Role:
    """Return the role of a split by its name: `validation` is dev; train for a name that says nothing."""
    return _WORDS.get(split_named(split), "train")


def whole_name_role(name: object) -> Role | None:
    """Return the role of a split that is called exactly so (`Validation`: dev); None for every other value."""
    return _WORDS.get(name.strip().casefold()) if isinstance(name, str) else None
