"""`vlmconsole keys`: the console's keys, and the names under which the settings change them."""

from __future__ import annotations

import typer

from vlmconsole.cli.common import USAGE, emit, fail, state


def register(app: typer.Typer) -> None:
    """Add `keys` to the command tree."""

    @app.command("keys")
    def keys(
        screen: str = typer.Argument("", metavar="SCREEN", help="Screen: chat, jobs, runs …; default: all"),
    ) -> None:
        """List the keys of the console's screens, each with the name that [keys] in the settings knows it by."""
        from vlmconsole.screens.keymap import checked, keys_by_id
        from vlmconsole.screens.keys import shown_keys

        remapped, problems = checked(state.lab.settings.keys)
        listed = {act: key for act, key in keys_by_id().items() if screen in ("", key.screen, act.partition(".")[0])}
        if not listed:
            fail(f"There is no screen {screen!r}.", "vlmconsole keys lists the keys of all screens.", USAGE)
        values = [
            {"act": act, "keys": shown_keys(key, remapped), "does": key.help, "yours": act in remapped}
            for act, key in listed.items()
        ]
        lines = [
            f"{row['act']:<24} {row['keys']:<10} {row['does']}{'  (yours)' * bool(row['yours'])}" for row in values
        ]
        emit({"keys": values, "problems": problems}, "\n".join([*lines, *(f"! {problem}" for problem in problems)]))
