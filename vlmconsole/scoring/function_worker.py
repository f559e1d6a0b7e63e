"""The child process in which a user's scoring function runs: JSON lines in on stdin, JSON lines out.

Started by `scoring.function_process` as `python -P -m vlmconsole.scoring.function_worker FILE FUNCTION SHA256`. What
the function prints goes to stderr. It ends with its parent, even while the function runs.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

#: names under which a function may ask for what it is given; the rest of its parameters are options
PREDICTION = ("prediction", "solution_str", "answer", "completion")
TRUTH = ("truth", "ground_truth", "target")
LONGEST_REASON = 300


def bound(function: Callable[..., Any], given: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords for one call, by the names of the function's parameters.

    Raises TypeError for a parameter that nothing fills and for an option that no parameter takes.
    """
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL) for each in parameters):
        raise TypeError("the function must take its arguments by name")
    anything = any(each.kind is each.VAR_KEYWORD for each in parameters)
    values = {
        **dict.fromkeys(PREDICTION, given["prediction"]),
        **dict.fromkeys(TRUTH, given["truth"]),
        "question": given.get("question", ""),
        "data_source": given.get("data_source", ""),
        "extra_info": given.get("extra_info", {}),
        "options": dict(options),
    }
    named = {each.name: each for each in parameters if each.kind is not each.VAR_KEYWORD}
    call: dict[str, Any] = {}
    for name, parameter in named.items():
        if name in options:
            call[name] = options[name]
        elif name in values:
            call[name] = values[name]
        elif parameter.default is parameter.empty:
            raise TypeError(f"nothing is known for its parameter {name}")
    unused = [name for name in options if name not in named]
    if anything:
        call |= {name: options[name] for name in unused}
    elif unused and "options" not in named:
        raise TypeError(f"it takes no option {unused[0]}")
    return call


def answer(function: Callable[..., Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reply to one request: `{"value": …}`, or `{"error": …}` in words."""
    try:
        value = function(**bound(function, request, request.get("options") or {}))
        if hasattr(value, "item") and not isinstance(value, dict | list | str):
            value = value.item()  # a number of numpy or torch
        return {"value": json.loads(json.dumps(value))}
    except BaseException as error:  # the user's code may raise anything, SystemExit too
        return {"error": f"{type(error).__name__}: {error}"[:LONGEST_REASON]}


def load(file: str, name: str, sha256: str) -> Callable[..., Any]:
    """Return the function called `name` of a file, whose bytes must have that hash. Raises whatever the file raises."""
    path = Path(file)
    source = path.read_bytes()
    if hashlib.sha256(source).hexdigest() != sha256:
        raise RuntimeError(f"{path.name} was changed since it was looked at")
    sys.path.append(str(path.parent))  # what it imports from beside itself
    module: dict[str, Any] = {"__name__": path.stem, "__file__": str(path)}
    exec(compile(source, str(path), "exec"), module)
    function = module.get(name)
    if not callable(function):
        raise AttributeError(f"{path.name} has no function {name}")
    if inspect.iscoroutinefunction(function):  # imported, or behind a decorator
        raise TypeError(f"{name} is async, and is not awaited: write it with def")
    called: Callable[..., Any] = function
    return called


def _end_with_parent() -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def main(file: str, name: str, sha256: str) -> None:
    """Serve requests until stdin ends."""
    replies: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # the process is killed at its end
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def reply(value: dict[str, Any]) -> None:
        replies.write(json.dumps(value) + "\n")
        replies.flush()

    try:
        function = load(file, name, sha256)
    except BaseException as error:  # whatever the file does when it is imported
        reply({"error": f"{type(error).__name__}: {error}"[:LONGEST_REASON]})
        return
    reply({"value": "ready"})
    for line in sys.stdin.buffer:
        reply(answer(function, json.loads(line)))


if __name__ == "__main__":
    main(*sys.argv[1:4])
