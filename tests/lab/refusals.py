"""Refusals and screen text checked by code and key nouns, never by their sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from vlmconsole.errors import LabError


@contextmanager
def refused(code: str, *nouns: str, error: type[LabError] = LabError) -> Iterator[pytest.ExceptionInfo[LabError]]:
    """The block raises `error` with exactly this code; its message or hint holds every noun."""
    with pytest.raises(error) as failure:
        yield failure
    check_error(failure.value, code, *nouns)


def check_error(error: BaseException, code: str, *nouns: str) -> None:
    """An error already caught has exactly this code; its message or hint holds every noun."""
    assert isinstance(error, LabError), f"no LabError: {error!r}"
    text = f"{error.message} {error.hint}"
    assert error.code == code, f"code {error.code!r}, not {code!r}: {text}"
    check_nouns(text, *nouns)


def check_json_error(output: str, code: str, *nouns: str) -> dict[str, Any]:
    """The one JSON value of a failed `--json` command has this code and these nouns; returns its `error`."""
    failure: dict[str, Any] = json.loads(output)["error"]
    text = f"{failure['message']} {failure.get('hint') or ''}"
    assert failure.get("code", "") == code, f"code {failure.get('code')!r}, not {code!r}: {text}"
    check_nouns(text, *nouns)
    return failure


def check_stderr(err: str, *nouns: str) -> None:
    """Standard error is one `error: ` line, with at most an indented hint below, and holds every noun."""
    first, *rest = err.splitlines() or [""]
    assert first.startswith("error: "), f"no error line: {err!r}"
    assert all(line.startswith("       ") for line in rest), f"more than an error and its hint: {err!r}"
    check_nouns(err, *nouns)


def check_nouns(text: str, *nouns: str) -> None:
    """The text holds every noun (`mentions`); says which it lacks."""
    missing = [noun for noun in nouns if not mentions(text, noun)]
    assert not missing, f"{missing} not in: {text}"


def mentions(text: str, *nouns: str) -> bool:
    """Whether the text holds every noun: as whole words ("rank" is not in "frankly"), in any case, over line breaks."""
    flat = " ".join(text.split())
    return all(re.search(_whole(noun), flat, re.IGNORECASE) for noun in nouns)


def _whole(noun: str) -> str:
    """The noun as a pattern; only where it begins or ends with a letter or digit must a word begin or end."""
    before, after = (r"\b" if edge.isalnum() else "" for edge in (noun[0], noun[-1]))
    return f"{before}{re.escape(noun)}{after}"
