"""What is wrong in a person's settings, key by key, from what pydantic found."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel

MOST = 3  # problems named of one file
LONGEST = 60  # characters of a value that is shown


def explain(problem: Any, model: type[BaseModel] | None = None) -> str:
    """Return one problem of a ValidationError, in words that name the key and what it may be.

    With `model` an unknown key is told with those that there are. A value is shown where `problem` holds it.
    """
    path, kind, context = problem["loc"], problem["type"], problem.get("ctx") or {}
    key = "".join(f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
    message = str(problem["msg"]).removeprefix("Value error, ")
    if kind == "extra_forbidden":
        return f"there is no key “{key}”{_instead(path, model)}"
    if kind == "missing":
        return f"“{key}” is needed and has no default"
    if not path:  # a rule over several keys: showing all of them would hide what is wrong
        return message
    given = f" is {_short(problem['input'])}" if "input" in problem else ""
    if kind == "too_short":
        return f"“{key}”{given}: write at least {context['min_length']}"
    return f"“{key}”{given}: {message[:1].lower()}{message[1:]}"


def explain_all(errors: Sequence[Any], model: type[BaseModel] | None = None, most: int | None = MOST) -> str:
    """Return the problems in one line, at most `most` (None: all), without what only follows from a fault deeper
    inside.
    """
    places = [tuple(error["loc"]) for error in errors]
    own = [
        error
        for error, place in zip(errors, places, strict=True)
        if not any(len(other) > len(place) and other[: len(place)] == place for other in places)
    ]
    shown = own if most is None else own[:most]
    more = f"; and {len(own) - len(shown)} more" if len(own) > len(shown) else ""
    return "; ".join(explain(error, model) for error in shown) + more


def is_model(kind: Any) -> bool:
    """Return whether an annotation is a table of settings."""
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _instead(path: Sequence[Any], model: type[BaseModel] | None) -> str:
    keys = [] if model is None else list(_keys(model, path[:-1]))
    if not keys:
        return ""
    close = difflib.get_close_matches(str(path[-1]), keys, n=1)
    hint = f", did you mean “{close[0]}”?" if close else ""
    return f"{hint} (keys: {', '.join(keys)})"


def _keys(model: type[BaseModel], path: Sequence[Any]) -> Iterator[str]:
    """The keys allowed at `path` inside `model` (through optional, listed and nested models)."""
    for step in path:
        if isinstance(step, int):
            continue
        info = model.model_fields.get(str(step))
        inner = [kind for kind in plain_types(info.annotation) if is_model(kind)] if info is not None else []
        if not inner:
            return
        model = inner[0]
    yield from model.model_fields


def plain_types(annotation: Any) -> Iterator[Any]:
    """Yield the plain types within `int | None`, `list[int]` and the like."""
    inner = get_args(annotation)
    if not inner:
        yield annotation
    for kind in inner:
        yield from plain_types(kind)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "…"
