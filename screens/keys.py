"""Every key of the console, once: bindings, footer, help and palette are all made from this table.

The same act has the same key on every screen: e export, x stop or cancel, r again, z enlarge, o open a folder or file,
b compare, / filter. People give an act another key by its id in the settings' `[keys]` (`keymap.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from textual.binding import Binding, BindingType
from textual.keys import format_key

Place = Literal["anywhere", "reading", "composer"]


@dataclass(frozen=True)
class Key:
    """One key. `place`: "reading" keys are single letters and work only while no text is being typed.

    `keys` are Textual's names, `shown` how a person would write them, `footer` a place in the bottom line (only the
    most used ones have one), `screen` the screen it belongs to ("" for all), `name` what its id calls the act, where
    that is not the action's own name.
    """

    keys: str
    action: str
    label: str
    help: str
    shown: str
    footer: bool = False
    place: Place = "reading"
    name: str = ""
    screen: str = ""

    @property
    def id(self) -> str:
        """`screen.act`, `app.act` for all screens: what the settings call it."""
        act = self.name or self.action.removeprefix("app.").partition("(")[0]
        return f"{self.screen or 'app'}.{act}"


def on(screen: str, *keys: Key) -> Iterator[Key]:
    """These keys, as that screen's."""
    return (replace(key, screen=screen) for key in keys)


def move(down: str, up: str) -> tuple[Key, Key]:
    """A line down, a line up."""
    return Key("j,down", "move(1)", "next", down, "j ↓", name="next"), Key(
        "k,up", "move(-1)", "previous", up, "k ↑", name="previous"
    )


def filtering(help: str) -> Key:
    return Key("slash", "filter", "filter", help, "/", footer=True)


def leaving(help: str) -> Key:
    return Key("escape", "leave", "back", help, "Esc", footer=True, place="anywhere")


HELP = Key("question_mark", "app.keys", "help", "These keys", "?", footer=True, name="help")
LARGE = Key("z", "large", "large", "This pane over the whole screen, and back", "z")
PANE = (
    Key("right_square_bracket", "pane(1)", "pane", "Pane to the right", "]", footer=True, name="next_pane"),
    Key("left_square_bracket", "pane(-1)", "pane", "Pane to the left", "[", name="previous_pane"),
)
MOVE = move("Next line", "Previous line")
PAGE = (
    Key("pagedown", "page(1)", "page down", "A page down", "PgDn", name="page_down"),
    Key("pageup", "page(-1)", "page up", "A page up", "PgUp", name="page_up"),
    Key("g,home", "edge(-1)", "first", "The first line", "g", name="first"),
    Key("G,end", "edge(1)", "last", "The last line", "G", name="last"),
)
#: What every `LookingScreen` can do: a screen that is not in the table has these keys.
PANED = (
    filtering("Filter the list"),
    *PANE,
    LARGE,
    *MOVE,
    *PAGE,
    leaving("Out of the filter or the large pane; back to the list"),
)

#: Reading keys come before those that work anywhere: the footer shows them in this order, as far as it has room.
KEYS: tuple[Key, ...] = (
    *on(
        "chat",
        Key("enter", "send", "send", "Send the question", "Enter", footer=True, place="composer"),
        Key("ctrl+j", "newline", "newline", "New line in the question", "Ctrl+J", footer=True, place="composer"),
        Key("x,ctrl+c", "stop", "stop", "Stop the answer; what came stays", "x", footer=True),
        Key("i", "write", "write", "Back to the composer", "i", footer=True),
    ),
    HELP,
    *on(
        "chat",
        Key("slash", "filter", "filter", "Find a conversation by its title or its words", "/", footer=True),
        Key("enter", "details", "evidence", "Raw request, usage and conditions", "Enter", footer=True, name="evidence"),
        *move("Choose the next message", "Choose the previous message"),
        Key("y", "copy", "copy", "Copy the chosen message (clipboard and a file)", "y", footer=True),
        Key("r", "again", "again", "Ask the same again; the old answer is put aside", "r", footer=True),
        Key("E", "change", "edit", "Change the chosen question and ask again", "E", footer=True, name="edit"),
        Key("n", "new", "new", "New conversation", "n", footer=True),
        *PANE,
        Key("e", "export", "export", "Save as Markdown and JSON, with the pictures", "e", footer=True),
        Key("d", "delete", "delete", "Delete the conversation (asks first)", "d", footer=True),
        Key("u", "undo", "undo", "Bring the last deleted conversation back", "u"),
        Key("R", "rename", "rename", "Rename the conversation", "R"),
        Key("o", "open_picture", "open", "Open the message's picture outside", "o"),
        Key("z", "zoom_picture", "zoom", "The message's picture on the whole screen", "z"),
        Key("p", "paste", "paste", "Attach the picture in this desktop's clipboard", "p"),
        Key("s", "sampling", "sampling", "System prompt, temperature, longest answer, seed", "s"),
        Key("S", "server", "server", "Choose the server that answers", "S"),
        Key("a", "adapter", "adapter", "Choose the adapter (LoRA) that answers", "a"),
        Key("v", "pair", "side by side", "Two servers' answers side by side", "v"),
        Key("b", "both", "both", "Ask the last question to a second server too", "b", name="compare"),
    ),
    *on(
        "gauges",
        Key("enter", "open", "open", "What the figure is, its source, its conditions", "Enter", footer=True),
        Key("tab", "series(1)", "series", "The next figure's curve", "Tab", footer=True, name="next_series"),
        Key("shift+tab", "series(-1)", "series", "The previous figure's curve", "Shift+Tab", name="previous_series"),
        Key("space", "pin", "pin", "Keep this curve in the plot (others of its unit)", "Space", footer=True),
        Key("t", "time_range", "time range", "A longer stretch; after the longest the shortest", "t", footer=True),
        LARGE,
        Key("l", "log", "log", "Logarithmic axis, and back", "l", footer=True),
        Key("p", "pause", "pause", "Hold what is shown; nothing is lost", "p", footer=True),
        Key("m", "mark", "mark", "A mark of one's own on every curve", "m"),
        Key("w", "record", "record", "Write every reading to a file; again: stop", "w", footer=True),
        Key("o", "replay", "replay", "A recording as if it were live; again: live", "o", footer=True),
        *PANE,
        Key("j,down", "card(0,1)", "down", "The figure below", "j ↓", name="down"),
        Key("k,up", "card(0,-1)", "up", "The figure above", "k ↑", name="up"),
        Key("h,left", "card(-1,0)", "left", "The figure to the left", "h ←", name="left"),
        Key("right", "card(1,0)", "right", "The figure to the right", "→", name="right"),
        leaving("Out of the large plot; back to the tiles"),
    ),
    *on(
        "jobs",
        Key("n", "new", "new", "New job: choose a preset, edit, review, queue", "n", footer=True),
        Key("enter", "open", "open", "Job details, or enlarge the selected curve or answer", "Enter", footer=True),
        Key("x", "cancel", "cancel", "Cancel the job (shows first what is lost)", "x", footer=True),
        Key("r", "retry", "retry", "Retry an ended job as a new attempt", "r", footer=True),
        filtering("Filter the queue, or search the log"),
        *PANE,
        Key("d", "drain", "pause", "Pause queue / resume", "d"),
        Key("C", "clone", "clone", "Queue a new job with the same settings", "C"),
        Key("K", "shift(-1)", "earlier", "Move up in the queue", "K", name="earlier"),
        Key("J", "shift(1)", "later", "Move down in the queue", "J", name="later"),
        Key("h", "hand_over", "hand over", "Stop the server on the job's device (asks first)", "h"),
        Key("p", "curve", "plot", "Enlarge the selected curve", "p"),
        Key("o", "folder", "folder", "Open the run folder and copy its path", "o"),
        Key("f", "follow", "follow", "Follow the end of the log, or stop following", "f"),
        Key(
            "comma",
            "match(-1)",
            "older",
            "Previous match in the log, or previous step of the answers",
            ",",
            name="older",
        ),
        Key("full_stop", "match(1)", "newer", "Next match in the log, or next step of the answers", ".", name="newer"),
        Key("ampersand", "only", "only", "Show only matching lines (again: all)", "&"),
        LARGE,
        *move("Next job, curve, image or line", "Previous job, curve, image or line"),
        *PAGE[:-1],
        Key("G,end", "edge(1)", "last", "Last line; follows the log", "G", name="last"),
        leaving("Leave filter and search; back to the queue"),
    ),
    *on(
        "gates",
        Key("enter", "open", "open", "Its conditions; a figure or a picture in full", "Enter", footer=True),
        Key("z", "zoom", "zoom", "The chosen picture on the whole screen", "z", footer=True),
        Key("c", "check", "check", "Judge now; the verdict goes into the ledger", "c", footer=True),
        Key("o", "folder", "folder", "Open the run folder and copy its path", "o"),
        Key(
            "A",
            "run_audit",
            "audit",
            "Audit the run, as a job; its checklist comes here",
            "A",
            footer=True,
            name="audit",
        ),
        filtering("Find a run or plan"),
        *PANE,
        *MOVE,
        *PAGE,
        leaving("Out of the filter; back to the list"),
    ),
    *on(
        "servers",
        Key("enter", "open", "open", "Profile, and what the server said word by word", "Enter", footer=True),
        Key("s", "start", "start", "Start the server, as a job", "s", footer=True),
        Key("x", "stop", "stop", "Stop it (asks first)", "x", footer=True),
        Key("r", "restart", "restart", "Stop it and start it anew (asks first)", "r", footer=True),
        Key("l", "log", "log", "Its log", "l", footer=True),
        Key(
            "c",
            "calc",
            "calculators",
            "Visual tokens and KV cache, with the maths",
            "c",
            footer=True,
            name="calculators",
        ),
        Key("u", "use", "use", "Let it answer in the chat", "u", footer=True),
        Key("a", "effect", "effect", "Whether its adapters change an answer at all", "a"),
        Key("o", "folder", "folder", "Open the folder of its log, and copy its path", "o"),
        LARGE,
        Key("F", "flush", "flush", "Empty its prefix cache", "F"),
        filtering("Find a server"),
        *PANE,
        *move("Next profile, or a line down", "Previous profile, or a line up"),
        *PAGE,
        leaving("Out of the filter or the large pane; back to the profiles"),
    ),
    *on(
        "runs",
        Key("enter", "open", "open", "The run's figures; on a figure: what is behind it", "Enter", footer=True),
        Key("space", "mark", "mark", "Mark a run (and go to the next) or a cell, to compare", "Space", footer=True),
        Key("b", "compare", "compare", "Compare the two marked ones", "b", footer=True),
        Key(
            "e", "export", "export", "Save as a report, CSV or JSON (the marked runs, else this one)", "e", footer=True
        ),
        filtering("Filter by name, kind, state, verdict or files"),
        Key("v", "verify", "verify", "Hash the run's files now, against its seal", "v", footer=True),
        *PANE,
        Key("full_stop", "jump(1)", "next part", "The next part of the figures", ".", name="next_part"),
        Key("comma", "jump(-1)", "part before", "The part before", ",", name="previous_part"),
        Key("u", "unmark", "unmark", "Take the marks away", "u"),
        Key("o", "folder", "folder", "Open the run folder and copy its path", "o"),
        LARGE,
        *move("Next run or line", "Previous run or line"),
        *PAGE,
        leaving("Out of the filter or the large pane; back to the runs"),
    ),
    Key("T", "app.toggle_theme", "theme", "Theme: dark or light", "T", name="theme"),
    Key("q", "app.quit", "quit", "Quit the console; servers and jobs go on", "q", footer=True),
    *on(
        "chat",
        Key(
            "ctrl+o",
            "attach",
            "attach",
            "Attach a picture from a list with preview",
            "Ctrl+O",
            footer=True,
            place="anywhere",
        ),
        Key(
            "ctrl+c",
            "copy",
            "stop",
            "Stop the answer; copies what is selected",
            "Ctrl+C",
            place="composer",
            name="stop_or_copy",
        ),
        Key(
            "escape",
            "leave",
            "leave",
            "Leave the composer; what is written stays",
            "Esc",
            footer=True,
            place="anywhere",
        ),
        Key("ctrl+t", "fit", "fit", "Shrink the last picture to fit the context", "Ctrl+T", place="anywhere"),
        Key("ctrl+r", "recent", "newest", "Send only the newest turns that fit", "Ctrl+R", place="anywhere"),
        Key("ctrl+g", "empty", "empty", "Empty the question (Ctrl+Z: back again)", "Ctrl+G", place="anywhere"),
    ),
    Key(
        "ctrl+p",
        "app.command_palette",
        "palette",
        "Everything by name",
        "Ctrl+P",
        footer=True,
        place="anywhere",
        name="palette",
    ),
)

#: What may be typed in place of a question, with what may follow it, and what it does.
TYPED: tuple[tuple[str, str, str], ...] = (
    ("/image", "PATH or URL", "Attach a picture; --private after it allows an address of this network"),
    ("/paste", "", "Attach the picture in this desktop's clipboard"),
    ("/adapter", "NAME", "Choose the adapter (LoRA) that answers; none for the base alone"),
    ("/recent", "N or all", "Send only the newest turns: as many as fit, the last N, or all again"),
)


class OldKey(NamedTuple):
    """A key of the version before: for this version it does the same, and says which key is the act's own now."""

    screen: str
    key: str
    id: str


_WRITTEN = {"escape": "Esc", "pagedown": "PgDn", "pageup": "PgUp", "enter": "Enter", "backspace": "Backspace"}

#: None of these letters has another meaning on its screen now. z of Gauges has one: `gauges.py`, `action_large`.
OLD_KEYS = (
    OldKey("chat", "c", "chat.edit"),
    OldKey("jobs", "c", "jobs.cancel"),
    OldKey("jobs", "t", "jobs.retry"),
    OldKey("jobs", "e", "jobs.folder"),
    OldKey("servers", "e", "servers.effect"),
    OldKey("runs", "c", "runs.compare"),
)


def keys_of(screen: str) -> list[Key]:
    """The keys of one screen and of all screens, in the order of the footer."""
    listed = [key for key in KEYS if key.screen in ("", screen)]
    if any(key.screen for key in listed):
        return listed
    return [HELP, *on(screen, *PANED), *(key for key in listed if key is not HELP)]


def bindings(place: Iterable[Place], screen: str) -> list[BindingType]:
    """Textual bindings of one screen (and of all screens) for the given places."""
    places, keys = tuple(place), keys_of(screen)
    made: list[BindingType] = [
        Binding(key.keys, key.action, key.label, key_display=key.shown, show=key.footer, id=key.id)
        for key in keys
        if key.place in places
    ]
    by_id = {key.id: key for key in keys}
    for old in OLD_KEYS:
        if old.screen == screen and by_id[old.id].place in places:
            made.append(old_binding(old.key, by_id[old.id].action, old.id))
    return made


def old_binding(key: str, action: str, now: str) -> Binding:
    """A key that still does `action`, with a hint; `now` is the act's id, or its key where it has no id."""
    return Binding(key, f"app.old_key({key!r}, {now!r}, {action!r})", show=False)


def written(key: str) -> str:
    """Textual's name of a key as a person would write it: `Ctrl+O`, `/`, `PgDn`."""
    *modifiers, base = key.split("+")
    shown = _WRITTEN.get(base) or format_key(base)
    if len(shown) > 1 or modifiers:
        shown = shown[0].upper() + shown[1:]
    return "+".join([*(name.title() for name in modifiers), shown])


def shown_keys(key: Key, remapped: Mapping[str, str]) -> str:
    """The keys of an act as they are now."""
    if key.id in remapped:
        return " ".join(map(written, remapped[key.id].split(",")))
    return key.shown


def reading_actions(screen: str) -> frozenset[str]:
    """Names of the actions (without arguments) that must not run while a text is being typed."""
    return frozenset(key.action.partition("(")[0] for key in keys_of(screen) if key.place == "reading")


def own_actions(screen: str) -> frozenset[str]:
    """Names of the actions that one screen handles itself."""
    return frozenset(key.action.partition("(")[0] for key in keys_of(screen) if key.screen == screen)
