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


#: Reading keys come before those that work anywhere: the footer shows them in this order, as far as it has room.
KEYS: tuple[Key, ...] = (
    Key("enter", "send", "send", "Send the question", "Enter", "composer", True, "chat"),
    Key("ctrl+j", "newline", "newline", "New line in the question", "Ctrl+J", "composer", True, "chat"),
    Key("x,ctrl+c", "stop", "stop", "Stop the answer; what came stays", "x", "reading", True, "chat"),
    Key("i", "write", "write", "Back to the composer", "i", "reading", True, "chat"),
    Key("question_mark", "app.keys", "help", "These keys", "?", "reading", True),
    Key("slash", "filter", "filter", "Find a conversation by its title or its words", "/", "reading", True, "chat"),
    Key("enter", "details", "evidence", "Raw request, usage and conditions", "Enter", "reading", True, "chat"),
    Key("j,down", "move(1)", "next", "Choose the next message", "j ↓", "reading", False, "chat"),
    Key("k,up", "move(-1)", "previous", "Choose the previous message", "k ↑", "reading", False, "chat"),
    Key("y", "copy", "copy", "Copy the chosen message (clipboard and a file)", "y", "reading", True, "chat"),
    Key("r", "again", "again", "Ask the same again; the old answer is put aside", "r", "reading", True, "chat"),
    Key("c", "change", "change", "Change the chosen question and ask again", "c", "reading", True, "chat"),
    Key("n", "new", "new", "New conversation", "n", "reading", True, "chat"),
    Key("right_square_bracket", "pane(1)", "pane", "Pane to the right", "]", "reading", True, "chat"),
    Key("left_square_bracket", "pane(-1)", "pane", "Pane to the left", "[", "reading", False, "chat"),
    Key("e", "export", "export", "Save as Markdown and JSON, with the pictures", "e", "reading", True, "chat"),
    Key("d", "delete", "delete", "Delete the conversation (asks first)", "d", "reading", True, "chat"),
    Key("u", "undo", "undo", "Bring the last deleted conversation back", "u", "reading", False, "chat"),
    Key("R", "rename", "rename", "Rename the conversation", "R", "reading", False, "chat"),
    Key("o", "open_picture", "open", "Open the message's picture outside", "o", "reading", False, "chat"),
    Key("z", "zoom_picture", "zoom", "The message's picture on the whole screen", "z", "reading", False, "chat"),
    Key("p", "paste", "paste", "Attach the picture in this desktop's clipboard", "p", "reading", False, "chat"),
    Key("s", "sampling", "sampling", "System prompt, temperature, longest answer, seed", "s", "reading", False, "chat"),
    Key("S", "server", "server", "Choose the server that answers", "S", "reading", False, "chat"),
    Key("a", "adapter", "adapter", "Choose the adapter (LoRA) that answers", "a", "reading", False, "chat"),
    Key("v", "pair", "side by side", "Two servers' answers side by side", "v", "reading", False, "chat"),
    Key("b", "both", "both", "Ask the last question to a second server too", "b", "reading", False, "chat"),
    Key("enter", "open", "open", "What the figure is, its source, its conditions", "Enter", "reading", True, "gauges"),
    Key("tab", "series(1)", "series", "The next figure's curve", "Tab", "reading", True, "gauges"),
    Key("shift+tab", "series(-1)", "series", "The previous figure's curve", "Shift+Tab", "reading", False, "gauges"),
    Key("space", "pin", "pin", "Keep this curve in the plot (others of its unit)", "Space", "reading", True, "gauges"),
    Key("z", "zoom", "zoom", "A longer stretch; after the longest the shortest", "z", "reading", True, "gauges"),
    Key("l", "log", "log", "Logarithmic axis, and back", "l", "reading", True, "gauges"),
    Key("p", "pause", "pause", "Hold what is shown; nothing is lost", "p", "reading", True, "gauges"),
    Key("m", "mark", "mark", "A mark of one's own on every curve", "m", "reading", False, "gauges"),
    Key("w", "record", "record", "Write every reading to a file; again: stop", "w", "reading", True, "gauges"),
    Key("o", "replay", "replay", "A recording as if it were live; again: live", "o", "reading", True, "gauges"),
    Key("right_square_bracket", "pane(1)", "pane", "Pane to the right", "]", "reading", True, "gauges"),
    Key("left_square_bracket", "pane(-1)", "pane", "Pane to the left", "[", "reading", False, "gauges"),
    Key("j,down", "move(0,1)", "down", "The figure below", "j ↓", "reading", False, "gauges"),
    Key("k,up", "move(0,-1)", "up", "The figure above", "k ↑", "reading", False, "gauges"),
    Key("h,left", "move(-1,0)", "left", "The figure to the left", "h ←", "reading", False, "gauges"),
    Key("right", "move(1,0)", "right", "The figure to the right", "→", "reading", False, "gauges"),
    Key("n", "new", "new", "New job: preset, form, plan, queue", "n", "reading", True, "jobs"),
    Key(
        "enter",
        "open",
        "open",
        "Everything about the job; a curve or an answer, large",
        "Enter",
        "reading",
        True,
        "jobs",
    ),
    Key("c", "cancel", "cancel", "Cancel the job (says first what is lost)", "c", "reading", True, "jobs"),
    Key("t", "retry", "retry", "Try an ended job again, as a new attempt", "t", "reading", True, "jobs"),
    Key("slash", "filter", "filter", "Filter the queue; in the log: search it", "/", "reading", True, "jobs"),
    Key("right_square_bracket", "pane(1)", "pane", "Pane to the right", "]", "reading", True, "jobs"),
    Key("left_square_bracket", "pane(-1)", "pane", "Pane to the left", "[", "reading", False, "jobs"),
    Key("d", "drain", "drain", "Start nothing new; again: go on", "d", "reading", False, "jobs"),
    Key("C", "clone", "clone", "Queue a new job with the same settings", "C", "reading", False, "jobs"),
    Key("K", "shift(-1)", "earlier", "Earlier in the queue", "K", "reading", False, "jobs"),
    Key("J", "shift(1)", "later", "Later in the queue", "J", "reading", False, "jobs"),
    Key("h", "hand_over", "hand over", "Let it stop the server on its device (asks)", "h", "reading", False, "jobs"),
    Key("p", "curve", "plot", "The chosen curve over the whole screen", "p", "reading", False, "jobs"),
    Key("e", "folder", "folder", "Open the run's folder, and copy its path", "e", "reading", False, "jobs"),
    Key("f", "follow", "follow", "Stay at the log's end, or where one reads", "f", "reading", False, "jobs"),
    Key(
        "comma",
        "match(-1)",
        "older",
        "The match before, in the log; of the answers, the step before",
        ",",
        "reading",
        False,
        "jobs",
    ),
    Key(
        "full_stop",
        "match(1)",
        "newer",
        "The match after; of the answers, the step after",
        ".",
        "reading",
        False,
        "jobs",
    ),
    Key("ampersand", "only", "only", "Only the lines that were found, and back", "&", "reading", False, "jobs"),
    Key("z", "large", "large", "This pane over the whole screen, and back", "z", "reading", False, "jobs"),
    Key("j,down", "move(1)", "next", "Next job, curve, picture or line", "j ↓", "reading", False, "jobs"),
    Key("k,up", "move(-1)", "previous", "Previous job, curve, picture or line", "k ↑", "reading", False, "jobs"),
    Key("pagedown", "page(1)", "page down", "A page down", "PgDn", "reading", False, "jobs"),
    Key("pageup", "page(-1)", "page up", "A page up", "PgUp", "reading", False, "jobs"),
    Key("g,home", "edge(-1)", "first", "The first line", "g", "reading", False, "jobs"),
    Key("G,end", "edge(1)", "last", "The last line; the log's end is followed", "G", "reading", False, "jobs"),
    Key("escape", "leave", "back", "Out of filter and search; back to the queue", "Esc", "anywhere", True, "jobs"),
    Key("enter", "open", "open", "Its conditions; a figure or a picture in full", "Enter", "reading", True, "gates"),
    Key("z", "zoom", "zoom", "The chosen picture on the whole screen", "z", "reading", True, "gates"),
    Key("c", "check", "check", "Judge now; the verdict goes into the ledger", "c", "reading", True, "gates"),
    Key("A", "run_audit", "audit", "Audit the run, as a job; its checklist comes here", "A", "reading", True, "gates"),
    Key("slash", "filter", "filter", "Find a run or plan", "/", "reading", True, "gates"),
    Key("right_square_bracket", "pane(1)", "pane", "Pane to the right", "]", "reading", True, "gates"),
    Key("left_square_bracket", "pane(-1)", "pane", "Pane to the left", "[", "reading", False, "gates"),
    Key("j,down", "move(1)", "next", "Next line", "j ↓", "reading", False, "gates"),
    Key("k,up", "move(-1)", "previous", "Previous line", "k ↑", "reading", False, "gates"),
    Key("pagedown", "page(1)", "page down", "A page down", "PgDn", "reading", False, "gates"),
    Key("pageup", "page(-1)", "page up", "A page up", "PgUp", "reading", False, "gates"),
    Key("g,home", "edge(-1)", "first", "The first line", "g", "reading", False, "gates"),
    Key("G,end", "edge(1)", "last", "The last line", "G", "reading", False, "gates"),
    Key("escape", "leave", "back", "Out of the filter; back to the list", "Esc", "anywhere", True, "gates"),
    Key("enter", "open", "open", "Profile, and what the server said word by word", "Enter", "reading", True, "servers"),
    Key("s", "start", "start", "Start the server, as a job", "s", "reading", True, "servers"),
    Key("x", "stop", "stop", "Stop it (asks first)", "x", "reading", True, "servers"),
    Key("r", "restart", "restart", "Stop it and start it anew (asks first)", "r", "reading", True, "servers"),
    Key("l", "log", "log", "Its log", "l", "reading", True, "servers"),
    Key("c", "calc", "calculators", "Visual tokens and KV cache, with the maths", "c", "reading", True, "servers"),
    Key("u", "use", "use", "Let it answer in the chat", "u", "reading", True, "servers"),
    Key("e", "effect", "effect", "Whether its adapters change an answer at all", "e", "reading", False, "servers"),
    Key("F", "flush", "flush", "Empty its prefix cache", "F", "reading", False, "servers"),
    Key("right_square_bracket", "pane(1)", "pane", "Pane to the right", "]", "reading", True, "servers"),
    Key("left_square_bracket", "pane(-1)", "pane", "Pane to the left", "[", "reading", False, "servers"),
    Key("j,down", "move(1)", "next", "Next profile, or a line down", "j ↓", "reading", False, "servers"),
    Key("k,up", "move(-1)", "previous", "Previous profile, or a line up", "k ↑", "reading", False, "servers"),
    Key("enter", "open", "open", "The run's figures; on a figure: what is behind it", "Enter", "reading", True, "runs"),
    Key(
        "space",
        "mark",
        "mark",
        "Mark a run (and go to the next) or a cell, to compare",
        "Space",
        "reading",
        True,
        "runs",
    ),
    Key("c", "compare", "compare", "Compare the two marked ones", "c", "reading", True, "runs"),
    Key(
        "e",
        "export",
        "export",
        "Save as a report, CSV or JSON (the marked runs, else this one)",
        "e",
        "reading",
        True,
        "runs",
    ),
    Key("slash", "filter", "filter", "Filter by name, kind, state, verdict or files", "/", "reading", True, "runs"),
    Key("v", "verify", "verify", "Hash the run's files now, against its seal", "v", "reading", True, "runs"),
    Key("right_square_bracket", "pane(1)", "pane", "Pane to the right", "]", "reading", True, "runs"),
    Key("left_square_bracket", "pane(-1)", "pane", "Pane to the left", "[", "reading", False, "runs"),
    Key("full_stop", "jump(1)", "next part", "The next part of the figures", ".", "reading", False, "runs"),
    Key("comma", "jump(-1)", "part before", "The part before", ",", "reading", False, "runs"),
    Key("u", "unmark", "unmark", "Take the marks away", "u", "reading", False, "runs"),
    Key("z", "large", "large", "This pane over the whole screen, and back", "z", "reading", False, "runs"),
    Key("j,down", "move(1)", "next", "Next run or line", "j ↓", "reading", False, "runs"),
    Key("k,up", "move(-1)", "previous", "Previous run or line", "k ↑", "reading", False, "runs"),
    Key("pagedown", "page(1)", "page down", "A page down", "PgDn", "reading", False, "runs"),
    Key("pageup", "page(-1)", "page up", "A page up", "PgUp", "reading", False, "runs"),
    Key("g,home", "move(-1000000)", "first", "The first line", "g", "reading", False, "runs"),
    Key("G,end", "move(1000000)", "last", "The last line", "G", "reading", False, "runs"),
    Key(
        "escape",
        "leave",
        "back",
        "Out of the filter or the large pane; back to the runs",
        "Esc",
        "anywhere",
        True,
        "runs",
    ),
    Key("T", "app.toggle_theme", "theme", "Theme: dark or light", "T"),
    Key("q", "app.quit", "quit", "Quit the console; servers and jobs go on", "q", "reading", True),
    Key("ctrl+o", "attach", "attach", "Attach a picture from a list with preview", "Ctrl+O", "anywhere", True, "chat"),
    Key(
        "ctrl+c",
        "copy",
        "stop",
        "Stop the answer; copies what is selected",
        "Ctrl+C",
        "composer",
        False,
        "chat",
    ),
    Key("escape", "leave", "leave", "Leave the composer; what is written stays", "Esc", "anywhere", True, "chat"),
    Key("ctrl+t", "fit", "fit", "Shrink the last picture to fit the context", "Ctrl+T", "anywhere", False, "chat"),
    Key("ctrl+r", "recent", "newest", "Send only the newest turns that fit", "Ctrl+R", "anywhere", False, "chat"),
    Key("ctrl+g", "empty", "empty", "Empty the question (Ctrl+Z: back again)", "Ctrl+G", "anywhere", False, "chat"),
    Key("ctrl+p", "app.command_palette", "palette", "Everything by name", "Ctrl+P", "anywhere", True),
)

#: What may be typed in place of a question, with what may follow it, and what it does.
TYPED: tuple[tuple[str, str, str], ...] = (
    ("/image", "PATH or URL", "Attach a picture; --private after it allows an address of this network"),
    ("/paste", "", "Attach the picture in this desktop's clipboard"),
    ("/adapter", "NAME", "Choose the adapter (LoRA) that answers; none for the base alone"),
    ("/recent", "N or all", "Send only the newest turns: as many as fit, the last N, or all again"),
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


def own_actions(screen: str) -> frozenset[str]:
    """Names of the actions that one screen handles itself."""
    return frozenset(key.action.partition("(")[0] for key in KEYS if key.screen == screen)
