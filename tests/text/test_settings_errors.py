"""What is wrong in settings, in words that name the key, what it is and what it may be."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from vlmconsole.text.settings_errors import explain_all


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    limit: float = Field(1.0, gt=0)


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    inner: Inner | None = None
    steps: list[Inner] = Field(default=[], min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Outer:
        if self.name == "odd":
            raise ValueError("The name and the steps do not go together")
        return self


def wrong(value: Any, **more: Any) -> str:
    with pytest.raises(ValidationError) as raised:
        Outer.model_validate(value)
    return explain_all(raised.value.errors(**more.pop("errors", {})), Outer, **more)


def test_the_key_what_it_is_and_what_it_may_be() -> None:
    assert wrong({"name": "a", "inner": {"limit": -1}}) == "“inner.limit” is -1: input should be greater than 0"
    assert wrong({"name": "a", "inner": {"limit": -1}}, errors={"include_input": False}).startswith("“inner.limit”: ")
    assert wrong({}) == "“name” is needed and has no default"
    assert wrong({"name": "a", "steps": []}) == "“steps” is []: write at least 1"
    assert wrong({"name": "a", "steps": [{"limit": 1}, {"limit": 0}]}).startswith("“steps[2].limit” is 0: ")
    assert wrong({"name": "odd"}) == "The name and the steps do not go together"


def test_an_unknown_key_is_told_with_those_that_there_are() -> None:
    assert wrong({"name": "a", "stpes": []}) == (
        "there is no key “stpes”, did you mean “steps”? (keys: name, inner, steps)"
    )
    assert wrong({"name": "a", "inner": {"floor": 1}}) == "there is no key “inner.floor” (keys: limit)"
    assert wrong({"name": "a", "steps": [{"limits": 1}]}).endswith("did you mean “limit”? (keys: limit)")


def test_only_the_first_are_named_unless_all_are_wanted() -> None:
    many = {"name": "a", **{f"key{n}": 1 for n in range(5)}}
    assert wrong(many).endswith("; and 2 more") and wrong(many).count("there is no key") == 3
    assert wrong(many, most=None).count("there is no key") == 5


VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda one: st.lists(one), max_leaves=40)


@given(st.dictionaries(st.sampled_from(["name", "inner", "steps", "more"]), VALUES))
def test_whatever_was_written_is_told_in_few_words(value: dict[str, Any]) -> None:
    try:
        Outer.model_validate(value)
    except ValidationError as error:
        text = explain_all(error.errors(), Outer)
        assert text and len(text) < 800 and "Value error" not in text
