"""The tree of commands. A command's module is imported only when its name is typed (or for `--help`)."""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperGroup

from vlmconsole import __version__
from vlmconsole.cli.common import USAGE, Failure, state

#: command (or group) name → module of vlmconsole.cli that registers it, in the order that --help shows
COMMANDS = {
    "chat": "chat",
    "chats": "chats",
    "ask": "ask",
    "servers": "servers",
    "run": "run",
    "eval": "evaluate",
    "jobs": "jobs",
    "bench": "bench",
    "calibrate": "bench",
    "runs": "runs",
    "verify": "verify",
    "adapters": "adapters",
    "data": "data",
    "gates": "gates",
    "audit": "audit",
    "tokens": "tokens",
    "kv": "kv",
    "score": "score",
    "scorers": "score",
    "env": "env",
    "gauges": "gauges",
    "keys": "keys",
    "web": "web",
    "doctor": "doctor",
}


class LazyTree(TyperGroup):
    """A click group that knows the names of its commands, and imports one when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"vlmconsole.cli.{COMMANDS[cmd_name]}")
        holder = typer.Typer(add_completion=False)
        holder.callback()(lambda: None)  # keeps typer from collapsing a single command into the holder
        module.register(holder)
        command = typer.main.get_group(holder).commands[cmd_name]
        _note_globals(command)
        return command


def _note_globals(command: Any) -> None:
    """Say under every command's help what `main` takes from anywhere on the line."""
    for child in getattr(command, "commands", {}).values():
        _note_globals(child)
    if state.json and hasattr(command, "no_args_is_help"):
        command.no_args_is_help = False  # a missing command is an error then, as JSON, and no page of help
    command.epilog = "Everywhere: --json (one JSON value on stdout, nothing else), --home DIR, --quiet."


def _version(value: bool) -> None:
    if value:
        typer.echo(f'{{"version": "{__version__}"}}' if state.json else f"vlmconsole {__version__}")
        raise typer.Exit


app = typer.Typer(cls=LazyTree, no_args_is_help=False, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version"),
    home: str = typer.Option("", "--home", metavar="DIR", help="Lab home; also VLMCONSOLE_HOME"),
    quiet: bool = typer.Option(False, "--quiet", help="Print no progress on stderr"),
) -> None:
    """A terminal lab console for vision-language models. Without a command it opens the console.

    --home, --quiet and --json may stand anywhere on the line.
    """


def run(words: list[str]) -> int:
    """Run one command line (its words after the global options). Returns the exit code."""
    command = typer.main.get_command(app)
    try:
        result = command.main(args=words, prog_name="vlmconsole", standalone_mode=False)
    except typer.Abort:
        return 130
    except Exception as error:
        # click's own errors know how to say themselves; typer carries its own copy of click, so no class to name
        if not hasattr(error, "format_message"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":  # the help, already printed, is all there is to say
            return USAGE
        context = getattr(error, "ctx", None)
        hint = context.get_usage() if context is not None else ""
        raise Failure(error.format_message(), hint, getattr(error, "exit_code", USAGE)) from None
    return result if isinstance(result, int) else 0
