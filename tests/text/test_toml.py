"""A value written as TOML is read back as it was."""

from __future__ import annotations

import math
import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from vlmconsole.text.toml import toml_lines, toml_value

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
LEAVES = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), TEXT)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=12)


@given(VALUES)
def test_what_is_written_is_read_back(value: Any) -> None:
    assert tomllib.loads(f"x = {toml_value(value)}")["x"] == value


def test_as_presets_are_written() -> None:
    value = {"lr": 1e-5, "name": 'a "b"', "sizes": [1, None, 2], "inner": {"on": True, "off": None}, "a b": {}}
    assert toml_value(value) == '{ lr = 1e-05, name = "a \\"b\\"", sizes = [1, 2], inner = { on = true }, "a b" = {} }'
    assert toml_lines({"lr": 1e-5, "adapter": None}) == ["  lr = 1e-05"]
    assert math.isnan(tomllib.loads(f"x = {toml_value(math.nan)}")["x"])
