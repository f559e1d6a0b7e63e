"""`python:FILE.py:FUNCTION`: a function of the user's own, run in a child process with a deadline.

The function is called by the names of its parameters: `prediction` and `truth` (verl's `solution_str` and
`ground_truth` as well), `question`, `extra_info`, `options`; every other parameter is an option. It returns a number
from 0 to 1, a truth value, or a dict with `score` and further figures.
"""

from __future__ import annotations

import ast
import hashlib
import os
import stat
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from vlmconsole.errors import LabError
from vlmconsole.scoring.function_process import CALL_LIMIT, FunctionFailure, FunctionProcess
from vlmconsole.scoring.scorer import Score, Scorer, ScorerOptions
from vlmconsole.system.typed_paths import named

PREFIX = "python:"
FORM = "python:FILE.py:FUNCTION"


class PythonFileError(LabError):
    """The file or the function cannot be used; the message says why."""

    exit_status = 2


class PythonOptions(ScorerOptions):
    """Whatever the function takes."""

    model_config = ConfigDict(extra="allow", frozen=True)


def names_function(text: str) -> bool:
    """Return whether a scorer's name is that of a function in a file, with or without `python:` before it."""
    file, _, function = text.removeprefix(PREFIX).rpartition(":")
    return text.startswith(PREFIX) or (file.endswith(".py") and function.isidentifier())


def split_name(text: str) -> tuple[str, str]:
    """(file, function) of a name. Raises PythonFileError unless it is written as one."""
    file, _, function = text.removeprefix(PREFIX).rpartition(":")
    if not file.endswith(".py") or not function.isidentifier():
        raise PythonFileError(f"“{text}” is no function in a file.", f"Write {FORM}.", code="function-invalid")
    return file, function


def python_scorer(text: str) -> PythonScorer:
    """Return the scorer of a function in a file, relative to the working folder. The file is read and not run.

    Raises PythonFileError.
    """
    file, function = split_name(text)
    path = named(file).absolute()
    try:
        status = path.stat()
        source = path.read_bytes()
    except OSError as error:
        raise PythonFileError(f"{path} cannot be read: {error.strerror}.", code="function-unreadable") from None
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & stat.S_IWOTH:
        raise PythonFileError(
            f"{path} could be changed by another user, and would be run as you.",
            f"Own it, and close it to others: chmod o-w {path}",
            code="function-unsafe",
        )
    names, awaited = _top_names(source, path)
    if function in awaited - names:
        raise PythonFileError(
            f"The function {function} of {path} is async.",
            "Write it with def: it is not awaited.",
            code="function-async",
        )
    if function not in names and "*" not in names:  # what * imports is known when the file runs
        raise PythonFileError(f"{path} has no function {function}.", f"Write {FORM}.", code="function-missing")
    return _scorer(path, function, hashlib.sha256(source).hexdigest())


def _top_names(source: bytes, path: Path) -> tuple[set[str], set[str]]:
    """(names that a file may define, names of its async functions), also inside if, try, with and loops."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise PythonFileError(f"{path} is no Python{where}: {error}.", code="function-unreadable") from None
    names: set[str] = set()
    awaited: set[str] = set()
    nodes: list[ast.AST] = list(tree.body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.AsyncFunctionDef):
            awaited.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name):
            names.add(node.id)
        else:
            nodes.extend(ast.iter_child_nodes(node))
    return names, awaited


@lru_cache(maxsize=8)  # each holds a process; one that is let go ends it
def _scorer(path: Path, function: str, sha256: str) -> PythonScorer:
    return PythonScorer(path, function, sha256)


class PythonScorer(Scorer[PythonOptions]):
    """A user's function. A call that raises, hangs or gives no number from 0 to 1 scores 0, with the reason."""

    summary = "A function of your own, in a process of its own"
    truth_form = "whatever the function takes"
    Options = PythonOptions

    def __init__(self, path: Path, function: str, sha256: str) -> None:
        self.path, self.function, self._sha256 = path, function, sha256
        self.name = f"{PREFIX}{path}:{function}"  # type: ignore[misc]
        self.process = FunctionProcess(path, function, sha256)

    @property
    def label(self) -> str:
        """File and function without the folder, which differs between machines."""
        return f"{PREFIX}{self.path.name}:{self.function}"

    @property
    def source_sha256(self) -> str:
        return self._sha256

    def _score(self, prediction: str, truth: Any, options: PythonOptions) -> Score:
        return self.judge(prediction, truth, options.model_dump())

    def judge(
        self, prediction: str, truth: Any, options: dict[str, Any], *, limit: float = CALL_LIMIT, **given: Any
    ) -> Score:
        """Score with what else is known of the example: `question`, `extra_info`, `data_source`. `limit`: seconds."""
        request = {"prediction": prediction, "truth": truth, "options": options, **given}
        try:
            return score_of(self.process.call(request, limit))
        except FunctionFailure as failure:
            return Score(0.0, False, False, f"{self.function}: {failure}", {"failed": True})


def score_of(value: Any) -> Score:
    """Return what a function returned, as a score.

    Raises FunctionFailure for anything but a number from 0 to 1, and for a `correct` or `valid` that is no truth value.
    """
    details: dict[str, Any] = {}
    if isinstance(value, dict):
        details = {key: item for key, item in value.items() if key not in ("score", "correct", "valid", "reason")}
        given, value = value, value.get("score")
    else:
        given = {}
    if isinstance(value, bool):
        value = float(value)
    if not isinstance(value, int | float) or not 0 <= value <= 1:  # NaN too; isfinite cannot take every integer
        shown = "no score" if value is None else f"{value!r:.40}"
        raise FunctionFailure(f"it gave {shown}, not a number from 0 to 1")
    correct, valid = _truth_value(given, "correct", value == 1), _truth_value(given, "valid", True)
    return Score(float(value), correct, valid, str(given.get("reason", "")), details)


def _truth_value(given: dict[str, Any], key: str, default: bool) -> bool:
    """True, false, 1 or 0 (verl averages numbers). Raises FunctionFailure for anything else, such as "no"."""
    value = given.get(key, default)
    if not isinstance(value, bool | int | float) or value not in (0, 1):
        raise FunctionFailure(f"it gave {key} {value!r:.40}, neither true nor false")
    return bool(value)
