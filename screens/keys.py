"""Every key of the console, once: bindings, footer, help and palette are all made from this table.

The same act has the same key on every screen: e export, x stop or cancel, r again, z enlarge, o open a folder or file,
b compare, / filter. People give an act another key by its id in the settings' `[keys]` (`keymap.py`).
"""

from __future__ import annotations

import re
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
    that is not the action's own name. `words`: what else people look for it by.
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
    words: str = ""

    @property
    def id(self) -> str:
        """`screen.act`, `app.act` for all screens: what the settings call it."""
        act = self.name or self.action.removeprefix("app.").partition("(")[0]
        return f"{self.screen or 'app'}.{act}"


def on(screen: str, *keys: Key) -> Iterator[Key]:
    """Return these keys, as that screen's."""
    return (replace(key, screen=screen) for key in keys)


def move(down: str, up: str) -> tuple[Key, Key]:
    """Return a line down, a line up."""
    return Key("j,down", "move(1)", "next", down, "j ↓", name="next"), Key(
        "k,up", "move(-1)", "previous", up, "k ↑", name="previous"
    )


def filtering(help: str) -> Key:
    return Key("slash", "filter", "filter", help, "/", footer=True)


def leaving(help: str) -> Key:
    return Key("escape", "leave", "back", help, "Esc", footer=True, place="anywhere")


HELP = Key("question_mark", "app.keys", "help", "Show all keys", "?", footer=True, name="help")
LARGE = Key("z", "large", "large", "Enlarge the pane, and back", "z")
PANE = (
    Key("right_square_bracket", "pane(1)", "pane", "Next pane", "]", footer=True, name="next_pane"),
    Key("left_square_bracket", "pane(-1)", "pane", "Previous pane", "[", name="previous_pane"),
)
MOVE = move("Next line", "Previous line")
PAGE = (
    Key("pagedown", "page(1)", "page down", "Page down", "PgDn", name="page_down"),
    Key("pageup", "page(-1)", "page up", "Page up", "PgUp", name="page_up"),
    Key("g,home", "edge(-1)", "first", "First line", "g", name="first"),
    Key("G,end", "edge(1)", "last", "Last line", "G", name="last"),
)
#: What every `LookingScreen` can do: a screen that is not in the table has these keys.
PANED = (
    filtering("Filter the list"),
    *PANE,
    LARGE,
    *MOVE,
    *PAGE,
    leaving("Close the filter or the large pane; back to the list"),
)

#: Reading keys come before those that work anywhere: the footer shows them in this order, as far as it has room.
KEYS: tuple[Key, ...] = (
    *on(
        "chat",
        Key("enter", "send", "send", "Send the message", "Enter", footer=True, place="composer"),
        Key("ctrl+j", "newline", "newline", "New line in the message", "Ctrl+J", footer=True, place="composer"),
        Key(
            "x,ctrl+c",
            "stop",
            "stop",
            "Stop the answer (the partial answer is kept)",
            "x",
            footer=True,
            words="cancel abort",
        ),
        Key("i", "write", "write", "Write a message", "i", footer=True),
    ),
    HELP,
    *on(
        "chat",
        Key("slash", "filter", "filter", "Search conversations by title or text", "/", footer=True),
        Key(
            "enter",
            "details",
            "evidence",
            "Details (request, usage, conditions)",
            "Enter",
            footer=True,
            name="evidence",
            words="evidence raw json",
        ),
        *move("Select the next message", "Select the previous message"),
        Key("y", "copy", "copy", "Copy the message (to the clipboard and a file)", "y", footer=True),
        Key(
            "r", "again", "again", "Regenerate answer (keeps the old one)", "r", footer=True, words="retry again repeat"
        ),
        Key("E", "change", "edit", "Edit the question and ask again", "E", footer=True, name="edit", words="change"),
        Key("n", "new", "new", "New conversation", "n", footer=True),
        *PANE,
        Key(
            "e",
            "export",
            "export",
            "Export as Markdown and JSON, with the images",
            "e",
            footer=True,
            words="save share picture",
        ),
        Key("d", "delete", "delete", "Delete the conversation (asks first)", "d", footer=True),
        Key("u", "undo", "undo", "Restore the last deleted conversation", "u", words="undelete bring back"),
        Key("R", "rename", "rename", "Rename the conversation", "R"),
        Key("o", "open_picture", "open", "Open image in external viewer", "o", words="picture photo"),
        Key("z", "zoom_picture", "zoom", "Enlarge the image", "z", words="picture photo zoom full screen"),
        Key("p", "paste", "paste", "Attach the image in the clipboard", "p", words="picture photo paste"),
        Key(
            "s",
            "sampling",
            "sampling",
            "Settings: system prompt, temperature, max tokens, seed",
            "s",
            words="options longest answer top-p sampling parameters",
        ),
        Key("S", "server", "server", "Choose a server", "S", words="model switch who answers"),
        Key("a", "adapter", "adapter", "Choose an adapter (LoRA)", "a", words="fine-tuned weights which answers"),
        Key("v", "pair", "side by side", "Show two servers' answers side by side", "v", words="compare pair"),
        Key(
            "b", "both", "both", "Ask another server the last question", "b", name="compare", words="compare second two"
        ),
    ),
    *on(
        "gauges",
        Key("enter", "open", "open", "Details: definition, source, conditions", "Enter", footer=True),
        Key("tab", "series(1)", "series", "Plot the next metric", "Tab", footer=True, name="next_series"),
        Key("shift+tab", "series(-1)", "series", "Plot the previous metric", "Shift+Tab", name="previous_series"),
        Key("space", "pin", "pin", "Pin this curve (same unit only)", "Space", footer=True),
        Key("t", "time_range", "time range", "Cycle time range", "t", footer=True, words="zoom minutes longer shorter"),
        LARGE,
        Key("l", "log", "log", "Toggle log axis", "l", footer=True),
        Key("p", "pause", "pause", "Pause the display (recording continues)", "p", footer=True),
        Key("m", "mark", "mark", "Drop a marker", "m", words="mark annotate"),
        Key("w", "record", "record", "Record every reading to a file (again: stop)", "w", footer=True),
        Key("o", "replay", "replay", "Replay a recording (again: back to live)", "o", footer=True),
        *PANE,
        Key("j,down", "card(0,1)", "down", "Tile below", "j ↓", name="down"),
        Key("k,up", "card(0,-1)", "up", "Tile above", "k ↑", name="up"),
        Key("h,left", "card(-1,0)", "left", "Tile to the left", "h ←", name="left"),
        Key("right", "card(1,0)", "right", "Tile to the right", "→", name="right"),
        leaving("Close the large plot; back to the tiles"),
    ),
    *on(
        "jobs",
        Key("n", "new", "new", "New job: choose a preset, edit, review, queue", "n", footer=True),
        Key("enter", "open", "open", "Job details, or enlarge the selected curve or answer", "Enter", footer=True),
        Key("x", "cancel", "cancel", "Cancel the job (shows first what is lost)", "x", footer=True),
        Key("r", "retry", "retry", "Retry an ended job as a new attempt", "r", footer=True, words="again resume rerun"),
        filtering("Filter the queue, or search the log"),
        *PANE,
        Key("d", "drain", "pause", "Pause queue / resume", "d", words="drain hold"),
        Key("C", "clone", "clone", "Queue a new job with the same settings", "C", words="copy duplicate"),
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
        leaving("Close filter and search; back to the queue"),
    ),
    *on(
        "gates",
        Key("enter", "open", "open", "Details: conditions, a metric or an image", "Enter", footer=True),
        Key("z", "zoom", "zoom", "Enlarge the image", "z", footer=True, words="picture photo zoom full screen"),
        Key("c", "check", "check", "Judge now and write the verdict to the ledger", "c", footer=True),
        Key("o", "folder", "folder", "Open the run folder and copy its path", "o"),
        Key(
            "A",
            "run_audit",
            "audit",
            "Audit the run (queues a job)",
            "A",
            footer=True,
            name="audit",
        ),
        filtering("Find a run or plan"),
        *PANE,
        *MOVE,
        *PAGE,
        leaving("Close the filter; back to the list"),
    ),
    *on(
        "servers",
        Key("enter", "open", "open", "Details: profile and raw server response", "Enter", footer=True),
        Key("s", "start", "start", "Start the server (queues a job)", "s", footer=True),
        Key("x", "stop", "stop", "Stop the server (asks first)", "x", footer=True),
        Key("r", "restart", "restart", "Restart the server (asks first)", "r", footer=True),
        Key("l", "log", "log", "Show the server log", "l", footer=True),
        Key(
            "c",
            "calc",
            "calculators",
            "Calculate image tokens and KV cache size",
            "c",
            footer=True,
            name="calculators",
        ),
        Key("u", "use", "use", "Use in chat", "u", footer=True),
        Key("a", "effect", "effect", "Check that its adapters change an answer", "a"),
        Key("o", "folder", "folder", "Open the log folder and copy its path", "o"),
        LARGE,
        Key("F", "flush", "flush", "Flush the prefix cache", "F", words="empty clear"),
        filtering("Find a server"),
        *PANE,
        *move("Next profile, or a line down", "Previous profile, or a line up"),
        *PAGE,
        leaving("Close the filter or the large pane; back to the profiles"),
    ),
    *on(
        "runs",
        Key("enter", "open", "open", "Details of the run or of a figure", "Enter", footer=True),
        Key("space", "mark", "mark", "Mark a run or a cell to compare", "Space", footer=True),
        Key("b", "compare", "compare", "Compare the two marked runs", "b", footer=True),
        Key("e", "export", "export", "Export a report, CSV or JSON (marked runs, or this one)", "e", footer=True),
        filtering("Filter by name, kind, state, verdict or files"),
        Key("v", "verify", "verify", "Verify the run's files against its seal", "v", footer=True),
        *PANE,
        Key("full_stop", "jump(1)", "next part", "Next section", ".", name="next_part"),
        Key("comma", "jump(-1)", "part before", "Previous section", ",", name="previous_part"),
        Key("u", "unmark", "unmark", "Clear the marks", "u"),
        Key("o", "folder", "folder", "Open the run folder and copy its path", "o"),
        LARGE,
        *move("Next run or line", "Previous run or line"),
        *PAGE,
        leaving("Close the filter or the large pane; back to the runs"),
    ),
    *on(
        "data",
        Key("enter", "ask", "ask", "Put the example into Chat's message box", "Enter", footer=True, words="chat open"),
        Key("f", "states", "show", "Show only wrong, flipped, invalid, noted or tagged ones", "f", footer=True),
        filtering("Find a dataset, or examples: words, is:wrong, tag:…, split:…, run:…"),
        Key("n", "note", "note", "Write a note on the example", "n", footer=True, words="comment annotate"),
        Key("t", "tag", "tag", "Tag the example", "t", footer=True, words="label annotate"),
        Key("a", "sheet", "ask all", "Ask one question of all shown or marked ones", "a", footer=True, words="contact"),
        Key("space", "mark", "mark", "Mark the example (for a and e)", "Space", footer=True, words="select choose"),
        Key("u", "unmark", "unmark", "Clear the marks", "u"),
        Key(
            "e", "export", "export", "Export what is shown or marked: CSV, HTML", "e", footer=True, words="save report"
        ),
        Key("y", "copy_import", "copy", "Copy the line that imports a dataset", "y", footer=True),
        *PANE,
        Key("h,left", "turn(-1)", "before", "Example before", "h ←", name="left"),
        Key("l,right", "turn(1)", "after", "Example after", "l →", name="right"),
        Key("comma", "turn(-1)", "before", "Example before, from any pane", ",", name="before"),
        Key("full_stop", "turn(1)", "after", "Example after, from any pane", ".", name="after"),
        Key("v", "verify", "verify", "Verify the dataset's files against its manifest", "v", footer=True),
        Key("o", "folder", "folder", "Open the dataset's folder and copy its path", "o"),
        LARGE,
        *move("Next dataset, row of examples or line", "Previous dataset, row of examples or line"),
        *PAGE,
        leaving("Close the filter or the large pane; back to the datasets"),
    ),
    Key("T", "app.toggle_theme", "theme", "Switch theme: dark / light", "T", name="theme"),
    Key("q", "app.quit", "quit", "Quit (servers and jobs keep running)", "q", footer=True),
    *on(
        "chat",
        Key(
            "ctrl+o",
            "attach",
            "attach",
            "Attach an image",
            "Ctrl+O",
            words="picture photo file open upload",
            footer=True,
            place="anywhere",
        ),
        Key(
            "ctrl+c",
            "copy",
            "stop",
            "Stop the answer; copy the selection",
            "Ctrl+C",
            place="composer",
            name="stop_or_copy",
        ),
        Key(
            "escape",
            "leave",
            "leave",
            "Leave the message box (the draft is kept)",
            "Esc",
            footer=True,
            place="anywhere",
        ),
        Key(
            "ctrl+t",
            "fit",
            "fit",
            "Shrink the last image to fit the context",
            "Ctrl+T",
            place="anywhere",
            words="picture photo resize smaller",
        ),
        Key("ctrl+r", "recent", "newest", "Send only the newest turns that fit", "Ctrl+R", place="anywhere"),
        Key("ctrl+g", "empty", "empty", "Clear message (Ctrl+Z restores)", "Ctrl+G", place="anywhere"),
    ),
    Key(
        "ctrl+p",
        "app.command_palette",
        "palette",
        "Command palette",
        "Ctrl+P",
        footer=True,
        place="anywhere",
        name="palette",
    ),
)

#: What may be typed in place of a question, with what may follow it, and what it does.
TYPED: tuple[tuple[str, str, str], ...] = (
    ("/image", "PATH or URL", "Attach an image; add --private to allow addresses in this network"),
    ("/paste", "", "Attach the image in the clipboard"),
    ("/adapter", "NAME", "Choose an adapter (LoRA); none = base model"),
    ("/recent", "N or all", "Send only the newest turns: as many as fit, the last N, or all"),
)


_BY_ID = {key.id: key for key in KEYS}


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
    """Return the keys of one screen and of all screens, in the order of the footer."""
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
    """Return a key that still does `action`, with a hint; `now` is the act's id, or its key where it has no id."""
    return Binding(key, f"app.old_key({key!r}, {now!r}, {action!r})", show=False)


def written(key: str) -> str:
    """Textual's name of a key as a person would write it: `Ctrl+O`, `/`, `PgDn`."""
    *modifiers, base = key.split("+")
    shown = _WRITTEN.get(base) or format_key(base)
    if len(shown) > 1 or modifiers:
        shown = shown[0].upper() + shown[1:]
    return "+".join([*(name.title() for name in modifiers), shown])


#: Act's id → its keys by the settings. Set when a console opens: text without an app names keys, too.
_in_use: dict[str, str] = {}
_PLACEHOLDER = re.compile(r"\{([a-z]+\.[a-z_]+)\}")


def use_in_text(remapped: Mapping[str, str]) -> None:
    """Have `key_of` and `with_keys` name the keys of these settings."""
    _in_use.clear()
    _in_use.update(remapped)


def key_of(act: str) -> str:
    """Return the first key of an act, as it is now: `key_of("jobs.drain")` is `d`. Raises KeyError for an unknown
    act.
    """
    if act not in _BY_ID:
        raise KeyError(act)
    return shown_keys(_BY_ID[act], _in_use).split(" ")[0]


def with_keys(text: str) -> str:
    """Put the key of an act in place of its id: `queue paused · {jobs.drain} resumes`. Never for foreign text."""
    return _PLACEHOLDER.sub(lambda act: key_of(act[1]), text)


def shown_keys(key: Key, remapped: Mapping[str, str]) -> str:
    """Return the keys of an act as they are now."""
    if key.id in remapped:
        return " ".join(map(written, remapped[key.id].split(",")))
    return key.shown


def reading_actions(screen: str) -> frozenset[str]:
    """Names of the actions (without arguments) that must not run while a text is being typed."""
    return frozenset(key.action.partition("(")[0] for key in keys_of(screen) if key.place == "reading")


def own_actions(screen: str) -> frozenset[str]:
    """Names of the actions that one screen handles itself."""
    return frozenset(key.action.partition("(")[0] for key in keys_of(screen) if key.screen == screen)
