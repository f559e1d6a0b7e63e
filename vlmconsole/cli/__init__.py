"""The command line: the plain twin of every screen, one module a command group, imported only when asked for."""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from pathlib import Path

from vlmconsole.cli import streams
from vlmconsole.cli.common import FAILED, Failure, print_failure, state
from vlmconsole.errors import LabError, refusal
from vlmconsole.system.privacy import keep_private
from vlmconsole.system.typed_paths import named
from vlmconsole.text.plain import one_line

USAGE = "usage: vlmconsole [--home DIR] [--json] [--quiet] COMMAND …   (vlmconsole --help lists the commands)"


def main(argv: list[str] | None = None) -> None:
    """Entry point of the `vlmconsole` script and of `python -m vlmconsole`. Never returns; exits with a code.

    Without a command it opens the console and imports nothing of the command line, to paint its first frame fast.
    """
    keep_private()
    has_output = streams.open_missing()
    streams.check_size()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot spell a sign (LC_ALL=POSIX) gets a `?` for it, never an error instead of the answer.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        words = _take_globals(list(sys.argv[1:] if argv is None else argv))
        if not has_output:
            raise Failure("Standard output is closed; nothing was done.")
        if words:
            streams.tell_refusals_apart()
            from vlmconsole.cli.tree import run

            code = run(words)
        else:
            code = _open_console()
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = 130
    except LabError as error:
        print_failure(error)
        code = error.exit_status
    except BrokenPipeError:
        # The reader (`| head`) went away: not our failure, and Python must not complain at exit either.
        streams.discard(sys.stdout)
        code = FAILED
    except streams.OutputError as error:
        streams.discard(sys.stdout)
        print_failure(Failure(f"Standard output cannot be written: {error.strerror}."))
        code = FAILED
    except OSError as error:
        # The machine's own refusals (no permission, disk full, no such folder): nothing of ours to trace.
        print_failure(_machine_failure(error))
        code = FAILED
    except Exception as error:
        code = _report_bug(error)
    sys.exit(code)


def _machine_failure(error: OSError) -> Failure:
    hint = ""
    if error.errno in (errno.EACCES, errno.EROFS):
        hint = "The lab home must be writable; choose another with --home DIR."
    elif error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "Make room on the lab home's disk (`vlmconsole doctor` says where), or take another with --home DIR."
    return Failure(one_line(refusal(error), 400), hint)


def _take_globals(words: list[str]) -> list[str]:
    """Take `--home DIR`, `--quiet` and a leading `--json` out of the words, wherever they stand before `--`."""
    rest: list[str] = []
    state.home, state.json, state.quiet = None, False, False
    while words:
        word = words.pop(0)
        if word == "--":
            return [*rest, word, *words]
        if word == "--home" or word.startswith("--home="):
            folder = word.partition("=")[2] if "=" in word else words.pop(0) if words else ""
            if not folder or folder.startswith("-"):
                raise Failure("--home needs a folder: --home DIR.", USAGE, 2)
            state.home = named(folder)
        elif word == "--quiet":
            state.quiet = True
        elif word == "--json":
            state.json = True
        else:
            rest.append(word)
    return rest


def _open_console() -> int:
    if state.json:
        raise Failure("--json needs a command; the console itself is a screen.", USAGE, 2)
    # Under `vlmconsole web` the terminal is in the browser, behind a driver that the environment names.
    if not (sys.stdin.isatty() and sys.stdout.isatty()) and "TEXTUAL_DRIVER" not in os.environ:
        raise Failure(
            "The console needs a terminal, not a pipe or a file.",
            "Every screen has a plain twin: `vlmconsole --help` lists them, `vlmconsole chat TEXT` answers here.",
            2,
        )
    # Nothing that is imported becomes garbage: collecting meanwhile only delays the first frame. The app turns it on.
    gc.disable()
    streams.ask_terminal()
    try:
        from vlmconsole.app import run_console
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] not in {"textual", "textual_plot"}:
            raise
        raise Failure(
            f"The console's screens are not installed here (module {missing.name} is missing).",
            "Install them with: pip install 'vlmconsole[tui]'. The commands work without them: vlmconsole --help",
        ) from None
    return run_console(state.home)


def _report_bug(error: Exception) -> int:
    """A fault of ours: the trace goes into a log file, one line goes to the person."""
    import tempfile
    import traceback

    text = "".join(traceback.format_exception(error))
    log = Path(tempfile.gettempdir())
    try:
        try:
            folder = state.lab.places.home / "logs"
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            log = folder / "crash.log"
            descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW, 0o600)
        except Exception:  # the lab home itself may be what is broken: the trace must still land somewhere
            # A file of our own that nobody could have laid there before: the folder is everybody's.
            descriptor, name = tempfile.mkstemp(prefix="vlmconsole-crash-", suffix=".log")
            log = Path(name)
        with os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(f"\n$ vlmconsole {' '.join(sys.argv[1:])}\n{text}")
        where = f"The trace is in {log}."
    except OSError as unwritable:
        where = f"The trace could not be written to {log} ({unwritable.strerror})."
    print_failure(Failure(f"{type(error).__name__}: {error}", f"This is a bug in vlmconsole. {where}"))
    return FAILED
