"""Renders one chat template, in a process of its own that a hostile or broken one can only end itself.

A template is a program by a model's author. Here it runs as transformers runs it (sandbox, filters, extensions), with
a limit on memory, on processor time and on what comes out; whoever asked goes on. Started by file name; needs jinja2.

The first line of standard input is {"template", "memory", "seconds", "most"}; each further one {"conversations":
[{"messages", "add_generation_prompt"}], "variables"}. Each is answered by a line: {"texts": […]} or {"error", "fatal"}.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from datetime import datetime
from importlib import import_module
from typing import Any


def environment() -> Any:
    """Return the Jinja environment of transformers' `apply_chat_template` (5.24)."""
    jinja2: Any = import_module("jinja2")
    sandbox, extensions = import_module("jinja2.sandbox"), import_module("jinja2.ext")

    class Generation(extensions.Extension):  # type: ignore[misc, name-defined]
        """`{% generation %}` marks what an assistant wrote; it changes nothing in the text."""

        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.Scope(body, lineno=line)

    class Namespace(jinja2.utils.Namespace):  # type: ignore[misc]
        """Without names that begin with an underscore."""

        def __setitem__(self, name: str, value: Any) -> None:
            if name.startswith("_"):
                raise jinja2.exceptions.SecurityError(f"the template stores an attribute called {name}")
            super().__setitem__(name, value)

    def refuse(message: str) -> str:
        raise jinja2.exceptions.TemplateError(message)

    def to_json(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None,
                sort_keys: bool = False) -> str:  # fmt: skip
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, extensions.loopcontrols]
    )
    made.filters["tojson"] = to_json
    made.globals |= {
        "raise_exception": refuse,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "namespace": Namespace,
    }
    return made


def limit(memory: int, seconds: int) -> None:
    """Hold this process to so many bytes more than it has, and to so many seconds of processor time a rendering."""
    for what, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        try:
            resource.setrlimit(what, (most, most))
        except (ValueError, OSError):  # macOS knows no limit of the address space; the time and the output are limited
            continue
    sys.setrecursionlimit(1000)
    clock(seconds)


def clock(seconds: float) -> None:
    """End this process after so many seconds of its own processor time; 0 stops the clock."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


def described(error: BaseException) -> str:
    """Return an error's kind and words, on one line."""
    words = " ".join(str(error).split()).encode("utf-8", "replace").decode()
    kind = type(error).__name__
    return f"{kind}: {words[:300]}" if words else kind


def pieces(compiled: Any, conversation: dict[str, Any], variables: dict[str, Any], most: int) -> Iterator[str]:
    """Yield what one rendering gives, piece by piece. Raises OverflowError past `most` characters."""
    total = 0
    for piece in compiled.generate(**{"tools": None, "documents": None, **variables, **conversation}):
        total += len(piece)
        if total > most:
            raise OverflowError(f"more than {most} characters came out")
        yield piece


def main() -> None:
    """Answer until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    first = json.loads(sys.stdin.readline())
    out, seconds = sys.stdout, float(first["seconds"])
    try:
        made = environment()
        limit(int(first["memory"]), 0)
        clock(seconds)
        compiled = made.from_string(first["template"])
        answer: dict[str, Any] = {"texts": []}
    except BaseException as error:
        answer = {"error": described(error), "fatal": True}
    clock(0)
    print(json.dumps(answer), file=out, flush=True)
    for line in sys.stdin if "texts" in answer else ():
        asked = json.loads(line)
        clock(seconds)
        try:
            texts = [
                "".join(pieces(compiled, conversation, asked["variables"], int(first["most"])))
                for conversation in asked["conversations"]
            ]
            answer = {"texts": texts}
        except BaseException as error:
            answer = {"error": described(error), "fatal": isinstance(error, MemoryError | OverflowError)}
        clock(0)
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    # Nothing of a template's doing may write where only answers belong.
    os.umask(0o077)
    main()
