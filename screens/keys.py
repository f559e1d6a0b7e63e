"""Every key of the console, once: bindings, footer, help and palette are all made from this table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from textual.binding import Binding, BindingType

Place = Literal["anywhere", "reading", "composer"]


@dataclass(frozen=True)
class Key:
    """One key. `place`: "reading" keys are single letters and work only while no text is being typed.

    `keys` are Textual's names, `shown` how a person would write them, `footer` a place in the bottom line (only the
    most used ones have one), `screen` the screen it belongs to ("" for all).
    """

    keys: str
    action: str
    label: str
    help: str
    shown: str
    place: Place = "reading"
    footer: bool = False
    screen: str = ""


KEYS: tuple[Key, ...] = (
    Key("enter", "send", "send", "Send the question", "Enter", "composer", True, "chat"),
    Key("ctrl+j", "newline", "newline", "New line in the question", "Ctrl+J", "composer", True, "chat"),
    Key("ctrl+o", "attach", "attach", "Attach a picture from a list with preview", "Ctrl+O", "anywhere", True, "chat"),
    Key(
        "ctrl+t",
        "fit",
        "fit",
        "Shrink the last picture to fit the context",
        "Ctrl+T",
        "anywhere",
        False,
        "chat",
    ),
    Key("escape", "leave", "stop / leave", "Stop the answer; else leave the composer", "Esc", "anywhere", True, "chat"),
    Key("i", "write", "write", "Back to the composer", "i", "reading", True, "chat"),
    Key("j,down", "move(1)", "next", "Choose the next message", "j ↓", "reading", False, "chat"),
    Key("k,up", "move(-1)", "previous", "Choose the previous message", "k ↑", "reading", False, "chat"),
    Key(
        "enter",
        "details",
        "evidence",
        "Raw request, usage and conditions of the answer",
        "Enter",
        "reading",
        True,
        "chat",
    ),
    Key("y", "copy", "copy", "Copy the chosen message (clipboard and a file)", "y", "reading", True, "chat"),
    Key(
        "r",
        "again",
        "again",
        "Ask the same again; the old answer is put aside, not deleted",
        "r",
        "reading",
        True,
        "chat",
    ),
    Key("c", "change", "change", "Change the chosen question and ask again", "c", "reading", True, "chat"),
    Key("o", "open_picture", "open", "Open the message's picture outside", "o", "reading", False, "chat"),
    Key("z", "zoom_picture", "zoom", "Show the message's picture on the whole screen", "z", "reading", False, "chat"),
    Key(
        "e",
        "export",
        "export",
        "Save the conversation as Markdown and JSON, with its pictures",
        "e",
        "reading",
        True,
        "chat",
    ),
    Key("n", "new", "new", "New conversation", "n", "reading", True, "chat"),
    Key("R", "rename", "rename", "Rename the conversation", "R", "reading", False, "chat"),
    Key(
        "d", "delete", "delete", "Delete the conversation (asks first; u brings it back)", "d", "reading", True, "chat"
    ),
    Key("u", "undo", "undo", "Bring the last deleted conversation back", "u", "reading", False, "chat"),
    Key("slash", "filter", "filter", "Find a conversation by its title or its words", "/", "reading", True, "chat"),
    Key("s", "sampling", "sampling", "System prompt, temperature, longest answer", "s", "reading", False, "chat"),
    Key("S", "server", "server", "Choose the server that answers", "S", "reading", False, "chat"),
    Key("b", "both", "both", "Ask the last question to a second server too", "b", "reading", False, "chat"),
    Key("left_square_bracket", "pane(-1)", "pane", "Pane to the left", "[", "reading", False, "chat"),
    Key("right_square_bracket", "pane(1)", "pane", "Pane to the right", "]", "reading", True, "chat"),
    Key("t", "app.toggle_theme", "theme", "Dark or light", "t"),
    Key("question_mark", "app.keys", "help", "These keys", "?", "reading", True),
    Key("q", "app.quit", "quit", "Leave the console; servers and jobs go on", "q", "reading", True),
    Key("ctrl+p", "app.command_palette", "palette", "Everything by name", "Ctrl+P", "anywhere"),
)


def bindings(place: Iterable[Place], screen: str) -> list[BindingType]:
    """Textual bindings of one screen (and of all screens) for the given places."""
    return [
        Binding(key.keys, key.action, key.label, key_display=key.shown, show=key.footer)
        for key in KEYS
        if key.place in place and key.screen in ("", screen)
    ]


def reading_actions(screen: str) -> frozenset[str]:
    """Names of the actions (without arguments) that must not run while a text is being typed."""
    return frozenset(
        key.action.partition("(")[0] for key in KEYS if key.place == "reading" and key.screen in ("", screen)
    )
