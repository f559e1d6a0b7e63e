"""`vlmconsole web`: the console in a browser on this machine, with images dropped on the page for the chat."""

from __future__ import annotations

import socket

import typer

from vlmconsole.cli.common import emit, fail, say, state

PORT = 8610


def register(app: typer.Typer) -> None:
    """Add `web` to the command tree."""
    app.command("web")(web)


def web(
    port: int = typer.Option(PORT, "--port", min=0, max=65535, help="Loopback port; 0: any free one"),
    host: str = typer.Option("127.0.0.1", "--host", help="Loopback address; for other machines use ssh -L"),
) -> None:
    """The console in a browser, on this machine only. Ctrl+C ends it; servers and jobs go on."""
    from vlmconsole.engines.profile import is_loopback

    if not is_loopback(host):
        fail(
            f"{host} is not a loopback address: whoever reached it could run anything as you.",
            f"From another machine: ssh -L {port or PORT}:127.0.0.1:{port or PORT} HOST, and open the printed"
            " address there.",
            2,
            code="address-open",
        )
    try:
        from vlmconsole.cli.web_server import ConsoleServer
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] not in {"textual_serve", "aiohttp", "textual"}:
            raise
        fail(
            f"The browser's part is not installed here (module {missing.name} is missing).",
            "Install it with: pip install 'vlmconsole[tui]'",
        )
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        fail(f"Cannot listen on {host} port {port}: {error.strerror}.", "Choose another with --port, or --port 0.")
    server = ConsoleServer(state.lab.places, listening)
    emit({"url": server.entry}, f"The console is at {server.entry}")
    say("The address holds a key: whoever has it can use the console as you. Ctrl+C ends it.")
    server.run()
