"""What every command shares: where the lab is, how a value is printed, how a failure is said.

The contract (scripts rely on it): with `--json` exactly one JSON value on stdout and nothing else,
logs and progress on stderr. Exit codes: 0 fine, 1 the thing asked for failed or was judged failing,
2 bad usage, 3 cannot judge.
"""

from __future__ import annotations

import json as jsonlib
import math
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from vlmconsole.cli.streams import OutputError, discard
from vlmconsole.errors import LabError
from vlmconsole.text.plain import inert

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment

    from vlmconsole.lab import Lab

PIPE_WIDTH = 200  # columns of a table that no terminal shows
_FILLED = re.compile(r" +((?:\x1b\[[\d;]*m)*)(?=\n)")  # blanks at a line's end, and what ends their style
OK, FAILED, USAGE, CANNOT_JUDGE = 0, 1, 2, 3


class Failure(LabError):
    """A command's own failure. `details` goes into the JSON form only."""

    def __init__(
        self, message: str, hint: str = "", exit_status: int = FAILED, *, code: str = "", **details: Any
    ) -> None:
        super().__init__(message, hint, code=code)
        self.exit_status, self.details = exit_status, details


class _State:
    """The global options of this one command line."""

    home: Path | None = None
    json: bool = False
    quiet: bool = False
    _lab: Lab | None = None
    _lab_home: Path | None = None

    @property
    def lab(self) -> Lab:
        """The lab of `--home`, `VLMCONSOLE_HOME` or the platform's folders; opened on first use."""
        if self._lab is None or self._lab_home != self.home:
            from vlmconsole.lab import Lab

            self._lab, self._lab_home = Lab.open(self.home), self.home
            if self._lab.note:
                say(self._lab.note)
        return self._lab


state = _State()


def fail(message: str, hint: str = "", exit_status: int = FAILED, *, code: str = "", **details: Any) -> NoReturn:
    """Stop this command with one clear line (and a hint); see `Failure`."""
    raise Failure(message, hint, exit_status, code=code, **details)


def emit(value: Any, human: Callable[[Console], None] | str | None = None) -> None:
    """Print a result once: `value` as JSON with `--json`, else `human` (a text, or a function of a console)."""
    if state.json:
        sys.stdout.write(plain_json(value) + "\n")
        sys.stdout.flush()
    elif callable(human):
        human(console())
    elif human is not None:
        console().print(human, markup=False, highlight=False, soft_wrap=True)


def plain_json(value: Any) -> str:
    """A value as JSON on one line, without what JSON cannot say."""
    return jsonlib.dumps(_plain(value), ensure_ascii=False, indent=None, allow_nan=False)


def console(*, stderr: bool = False) -> Console:
    """A rich console. Model output and file names must be printed with `markup=False`; their escapes never arrive."""
    from rich.console import Console
    from rich.segment import Segment
    from rich.table import Table
    from rich.text import Text

    class Inert(Console):
        """Whatever text is printed, also in a table's cell, holds no command for the terminal.

        Lines of a table end with their last word: the blanks that fill its last column would be copied with them.
        """

        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(inert(text), **options)

        def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
            # The last gate: a `Text` that was built by hand passes no other.
            for segment in super().render(renderable, options):
                safe = segment.text if segment.control else inert(segment.text)
                if safe == segment.text:
                    yield segment
                else:
                    yield Segment(safe.replace("\n", " "), segment.style)

        def print(self, *objects: Any, **options: Any) -> None:
            if self.quiet or not any(isinstance(object_, Table) for object_ in objects):
                super().print(*objects, **options)
                return
            with self.capture() as held:
                super().print(*objects, **options)
            self.file.write(_FILLED.sub(r"\1", held.get()))
            self.file.flush()

    # Into a pipe or a file lines may be long: a table squeezed to 80 columns there helps nobody.
    width = None if (sys.stderr if stderr else sys.stdout).isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return Inert(stderr=stderr, quiet=state.quiet and stderr, highlight=False, width=width)


def say(message: str) -> None:
    """A progress or log line for people: stderr, silent under `--quiet`, and once its reader went away."""
    if not state.quiet:
        try:
            sys.stderr.write(inert(message) + "\n")
            sys.stderr.flush()
        except BrokenPipeError:
            hush()


def hush() -> None:
    """Say nothing more on stderr: `| tee log` died, of the same Ctrl-C it may be. What is done here must still end."""
    state.quiet = True
    discard(sys.stderr)


def print_failure(failure: LabError) -> None:
    """Write a failure to stderr, and under `--json` also as the one JSON value on stdout."""
    if state.json:
        error = {"message": failure.message, "hint": failure.hint or None, **getattr(failure, "details", {})}
        if failure.code:
            error["code"] = failure.code
        try:
            sys.stdout.write(jsonlib.dumps({"error": _plain(error)}, ensure_ascii=False) + "\n")
            sys.stdout.flush()
        except (BrokenPipeError, OutputError):  # the failure itself still goes to stderr, and into the exit code
            discard(sys.stdout)
    # A message may quote a name or a file of someone else's; a terminal would obey what is in it.
    hint = f"       {inert(failure.hint)}\n" if failure.hint else ""
    try:
        sys.stderr.write(f"error: {inert(failure.message)}\n{hint}")
        sys.stderr.flush()
    except OSError:
        hush()


def _plain(value: Any) -> Any:
    """Only what JSON can say: paths become text, NaN and infinities null (never a bare NaN that breaks a reader)."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "model_dump"):
        return _plain(value.model_dump(mode="json"))
    return value
