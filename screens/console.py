"""What screens need from the app: they know this much of it, and never import it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from textual.dom import DOMNode
from textual.signal import Signal

if TYPE_CHECKING:
    from vlmconsole.lab import Lab
    from vlmconsole.models.messages import Message
    from vlmconsole.screens.link import ServerLink
    from vlmconsole.screens.terminal.terminal import Drawing
    from vlmconsole.vision.images import Picture


class Console(Protocol):
    """The app as screens see it; `app.py` has it checked that the app is one."""

    lab: Lab
    drawing: Drawing
    clock: Callable[[], float]  # wall time, seconds
    link: ServerLink | None
    no_server: str  # why there is no server to answer, "" while one is there or still looked for
    server_changed: Signal[None]  # published whenever the server's state or settings moved
    remapped: Mapping[str, str]  # binding id → the keys that the settings give it, comma-separated

    def profiles(self) -> dict[str, Any]:
        """Server profiles by name."""

    def choose_server(self, name: str) -> None:
        """Let another profile answer from now on."""

    def link_to(self, name: str) -> ServerLink:
        """Return a second link, to the server of the profile `name`."""

    def write_in_chat(self, text: str, pictures: Sequence[Picture]) -> None:
        """Show the chat with a new conversation, and this question in its message box, not sent yet."""

    def ask_in_chat(self, messages: Sequence[Message], title: str) -> None:
        """Show the chat with a new conversation of these turns, and have its last question answered."""

    def since_key(self) -> float:
        """Seconds since the last key was pressed."""


def console_of(node: DOMNode) -> Console:
    """Return the app of a screen or widget."""
    return cast("Console", node.app)
