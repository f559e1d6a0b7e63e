"""`vlmconsole doctor`: what is found, missing or at the wrong version."""

from __future__ import annotations

import typer
from rich.console import Console

from vlmconsole.cli.common import FAILED, emit, state
from vlmconsole.text.signs import NOTHING, sign_of


def register(app: typer.Typer) -> None:
    """Add `doctor` to the command tree."""

    @app.command("doctor")
    def doctor() -> None:
        """Say what is found, missing or mispinned. Exit code 1 when something is wrong."""
        from vlmconsole.doctor import as_json, examine
        from vlmconsole.lab import Lab

        checks = examine(Lab.open(state.home, lenient=True))
        result = as_json(checks)

        def human(console: Console) -> None:
            width = max(len(check.name) for check in checks)
            for check in checks:
                shown = NOTHING if check.state == "missing" else sign_of(check.state)  # what is optional may be missing
                console.print(f"{shown.mark} {check.name:<{width}}  ", style=shown.rich, end="", markup=False)
                console.print(check.found, markup=False, soft_wrap=True)
                if check.hint and check.state in {"missing", "wrong"}:
                    console.print(f"{'':<{width + 4}}{check.hint}", style="dim", markup=False, soft_wrap=True)

        emit(result, human)
        if not result["ok"]:
            raise typer.Exit(FAILED)
