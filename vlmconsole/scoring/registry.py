"""Which scorers there are: the modules of `scoring.supported`, installed packages' entry points, Python files.

Each is imported when first asked for.
"""

from __future__ import annotations

import difflib
import hashlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.runs.conditions import canonical_json
from vlmconsole.scoring import supported
from vlmconsole.scoring.python_scorer import FORM, names_function, python_scorer, split_name
from vlmconsole.scoring.scorer import Score as Score
from vlmconsole.scoring.scorer import Scorer as Scorer
from vlmconsole.scoring.scorer import ScorerOptions

GROUP = "vlmconsole.scorers"
_DIGITS = 12  # of a digest inside a scorer's identity


class UnknownScorerError(LabError):
    """No such scorer; the message names the nearest."""

    exit_status = 2


def scorer_names() -> list[str]:
    """Return every scorer by name, sorted; nothing is imported."""
    shipped = {module.name for module in pkgutil.iter_modules(supported.__path__)}
    return sorted(shipped | {point.name for point in entry_points(group=GROUP)})


def find_scorer(name: str) -> Scorer[Any]:
    """Return the scorer called `name`, or of `python:FILE.py:FUNCTION`, which is read and not run.

    Raises UnknownScorerError and PythonFileError.
    """
    if names_function(name):
        return python_scorer(name)  # looked at anew each time: the file may have been edited
    return _find(name)


@cache
def _find(name: str) -> Scorer[Any]:
    if name in {module.name for module in pkgutil.iter_modules(supported.__path__)}:
        return _scorer(import_module(f"{supported.__name__}.{name}").SCORER, name)
    for point in entry_points(group=GROUP):
        if point.name == name:
            try:
                return _scorer(point.load(), name)
            except Exception as error:  # another package's code: whatever it raises, the scorer is not there
                raise UnknownScorerError(
                    f"The scorer {name} of {point.value} cannot be loaded: {error}.",
                    "Install that package anew, or choose another scorer.",
                    code="scorer-broken",
                ) from error
    names = scorer_names()
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    raise UnknownScorerError(
        f"There is no scorer “{name}”.{hint} There are: {', '.join(names)}, {FORM}.", code="scorer-unknown"
    )


def unknown(name: str) -> str:
    """Return why `name` is no scorer, for a setting's message; "" when it is one, or is written as a function in a
    file: whether that is there is told when it is planned, and an old run may be read without it."""
    try:
        if names_function(name):
            split_name(name)
            return ""
        find_scorer(name)
    except LabError as error:
        return error.message
    return ""


def identity(scorer: str | Scorer[Any], options: Mapping[str, Any] | ScorerOptions | None = None) -> str:
    """Return what of a scorer goes into hashes and conditions: its label, the options that are not defaults, its
    source.

    Raises UnknownScorerError and OptionsError.
    """
    rule = find_scorer(scorer) if isinstance(scorer, str) else scorer
    changed = rule.parse(options).model_dump(mode="json", exclude_defaults=True)
    parts = [rule.label]
    if changed:
        parts.append(f"options {hashlib.sha256(canonical_json(changed)).hexdigest()[:_DIGITS]}")
    if rule.source_sha256:
        parts.append(f"source {rule.source_sha256[:_DIGITS]}")
    return " ".join(parts)


def _scorer(value: Any, name: str) -> Scorer[Any]:
    scorer = value() if isinstance(value, type) else value
    if not isinstance(scorer, Scorer):
        raise UnknownScorerError(f"The scorer {name} is no Scorer but {type(scorer).__name__}.", code="scorer-broken")
    return scorer
