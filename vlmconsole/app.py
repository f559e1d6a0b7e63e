"""The console: it wires screens to the lab, and nothing else."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import textual.screen
from textual import events
from textual.binding import Binding, BindingType
from textual.filter import LineFilter, Monochrome
from textual.notifications import Notification, Notify
from textual.screen import Screen
from textual.signal import Signal

import vlmconsole.screens
from vlmconsole.lab import Lab
from vlmconsole.screens.background import in_background
from vlmconsole.screens.console import Console
from vlmconsole.screens.faults import FaultsTold
from vlmconsole.screens.keymap import OwnKeys
from vlmconsole.screens.keys import with_keys
from vlmconsole.screens.table import SCREENS, import_screen, is_imported, load_screen
from vlmconsole.screens.terminal.key_order import KeysInOrder
from vlmconsole.screens.terminal.killed_mark import TerminalMark
from vlmconsole.screens.terminal.pastes import tame_pastes
from vlmconsole.screens.terminal.terminal import Drawing, drawing_for, gone, heal_terminal
from vlmconsole.screens.theme import DARK, LIGHT, Greys

if TYPE_CHECKING:
    from textual.command import Provider

    from vlmconsole.models.messages import Message
    from vlmconsole.screens.chat.screen import ChatScreen
    from vlmconsole.screens.link import ServerLink
    from vlmconsole.vision.images import Picture

HANG_UP = 10.0  # seconds that an end by a signal may take
LOOK = 2.0  # seconds between two looks whether the server's process still lives
FULL_COLLECTION = 20  # collections of the middle generation before a full one of Python's garbage; 10 by itself
SOON = 0.7  # seconds that a first look at a screen may take before it is said that it is coming
SLOW_FPS = 10
_STYLES = Path(vlmconsole.screens.__file__).parent


def _palette() -> type[Provider]:
    from vlmconsole.screens.palette import KeyCommands

    return KeyCommands


class ConsoleApp(FaultsTold, KeysInOrder, OwnKeys):
    """One lab home on one terminal. `clock` is wall time (a test's own), `drawing` how pictures are drawn."""

    TITLE = "vlmconsole"
    CSS_PATH: ClassVar[Any] = [_STYLES / "console.tcss", _STYLES / "chat" / "chat.tcss"]
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(f"f{s.number},{s.number}", f"screen('{s.name}')", s.title, show=False) for s in SCREENS),
    ]
    MODES: ClassVar[dict[str, str | Callable[[], Screen[Any]]]] = {
        entry.name: partial(load_screen, entry.name) for entry in SCREENS
    }
    DEFAULT_MODE = SCREENS[0].name
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {_palette}

    def __init__(self, lab: Lab, *, drawing: Drawing = "halfcell", clock: Callable[[], float] = time.time) -> None:
        self.lab = lab
        self.drawing: Drawing = drawing
        self.clock = clock
        super().__init__()
        # One pane at a time below 100 columns, all of them above.
        self.HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]
        # Rows: what is left out as they become few stands in the style sheets; the composer never is.
        self.VERTICAL_BREAKPOINTS = [(0, "-flat"), (3, "-squat"), (6, "-low"), (12, "-high")]
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        # Without the watcher: it would have every style sheet parsed once more before the first frame.
        self.set_reactive(ConsoleApp.theme, f"vlmconsole-{lab.settings.theme}")
        self.stylesheet.set_variables(self.get_css_variables())
        if lab.settings.slow_link:
            self.animation_level = "none"
        self._greys = Greys()
        self._typed = 0.0
        self.link: ServerLink | None = None
        #: Why there is no server to answer, "" while one is there or still looked for.
        self.no_server = ""
        self._others: dict[str, ServerLink] = {}
        self._said: set[str] = set()  # faults of profile files, told once each
        #: Published without data whenever the server's state or settings moved.
        self.server_changed: Signal[None] = Signal(self, "server_changed")

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Ours in the place of Textual's for NO_COLOR."""
        return [
            self._greys if type(line_filter) is Monochrome else line_filter
            for line_filter in super().get_line_filters()
        ]

    def on_mount(self) -> None:
        if self.lab.settings.keys:
            self.use_keys(self.lab.settings.keys)
        for number in (signal.SIGHUP, signal.SIGTERM):
            # A closed terminal must end the console, not leave it spinning on a dead screen.
            signal.signal(number, partial(self._hang_up, asyncio.get_running_loop()))
        if not self.is_headless:
            self.set_interval(LOOK, self._look_for_terminal)
        # After the first frame: profiles and engines are not needed to paint, only to answer.
        self.call_after_refresh(self._connect)

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key):
            self._typed = time.monotonic()
        await super().on_event(event)

    def write_in_chat(self, text: str, pictures: Sequence[Picture]) -> None:
        """Show the chat with a new conversation, and this question in its message box, not sent yet."""
        self.switch_mode("chat")
        self.call_later(cast("ChatScreen", self.screen).write, text, pictures)

    def ask_in_chat(self, messages: Sequence[Message], title: str) -> None:
        """Show the chat with a new conversation of these turns, and have its last question answered."""
        self.switch_mode("chat")
        self.call_later(cast("ChatScreen", self.screen).ask_turns, messages, title)

    def since_key(self) -> float:
        """Seconds since the last key was pressed."""
        return time.monotonic() - self._typed

    def _hang_up(self, loop: asyncio.AbstractEventLoop, number: int, frame: object) -> None:
        """End; at once where the loop itself waits for a terminal that takes nothing any more.

        Not the loop's own signal handler, which would never be called then. What an answer had is in the store.
        """
        last = threading.Timer(HANG_UP, os._exit, (128 + number,))
        last.daemon = True
        last.start()
        loop.call_soon_threadsafe(self.exit)

    def _look_for_terminal(self) -> None:
        if sys.__stdin__ is not None and gone(sys.__stdin__.fileno()):
            signal.raise_signal(signal.SIGHUP)

    def _connect(self) -> None:
        from vlmconsole.screens.job_watch import JobWatch

        # While an answer streams, every second brought a full collection that walked over all that was ever imported:
        # 80 ms in which no key was painted (docs/measurements.md). Here and once a server answers, what is there stays,
        # and the full collections come more rarely.
        gc.freeze()
        gc.enable()
        gc.set_threshold(700, 10, FULL_COLLECTION)
        self.choose_server(self.lab.settings.server)
        JobWatch(self, self.lab).start()
        if self.lab.note:
            self.notify(self.lab.note, severity="warning", markup=False, timeout=15)
        self.set_interval(LOOK, lambda: self.link.look() if self.link is not None else None)

    def choose_server(self, name: str) -> None:
        """Let another profile answer from now on."""
        self.run_worker(self.use_server(name), name="server", exit_on_error=False)

    def link_to(self, name: str) -> ServerLink:
        """Return a second line, to the server of the profile `name`; it starts when it is first asked."""
        from vlmconsole.screens.link import ServerLink

        if name not in self._others:
            self._others[name] = ServerLink(self.profiles()[name], self.lab.places, lambda: None)
        return self._others[name]

    async def use_server(self, name: str) -> None:
        """Make the profile `name` the one that answers, starting it if need be. Faults become its state."""
        from vlmconsole.engines.profile import no_such_profile
        from vlmconsole.screens.link import ServerLink

        profiles = await asyncio.to_thread(self.profiles)
        profile = profiles.get(name)
        if profile is None:
            missing = no_such_profile(name, profiles)
            self.no_server = missing.full_message
            if self.link is not None:  # the one before goes on answering
                self.notify(self.no_server, severity="error", markup=False)
            self.server_changed.publish(None)
            return
        self.no_server = ""
        self.link = ServerLink(profile, self.lab.places, lambda: self.server_changed.publish(None))
        self.server_changed.publish(None)
        await self.link.start()
        gc.freeze()

    def profiles(self) -> dict[str, Any]:
        """Server profiles by name; unusable files are left out and said once."""
        from vlmconsole.engines.profile import ProfileError, load_profiles

        problems: list[ProfileError] = []
        profiles = load_profiles(self.lab.places.servers, problems=problems)
        for message in {str(problem) for problem in problems} - self._said:
            self._said.add(message)
            self.call_later(self.notify, message, severity="warning", markup=False)
        return dict(profiles)

    def action_screen(self, name: str) -> None:
        """Show a screen; one that was never shown is imported first, beside the loop: keys and answers go on."""
        if is_imported(name):
            self.switch_mode(name)
        else:
            in_background(self, partial(self._first_shown, name), "screen", exclusive=True)

    async def _first_shown(self, name: str) -> None:
        importing = asyncio.ensure_future(asyncio.to_thread(import_screen, name))
        notice = Notification(f"opening {name}…", markup=False)  # a key that seems to do nothing is pressed again
        if not (await asyncio.wait([importing], timeout=SOON))[0]:
            self.post_message(Notify(notice))
        await importing
        self.switch_mode(name)
        if notice in self._notifications:  # it covers a corner of the very screen that it announced
            self._unnotify(notice)

    def action_help_quit(self) -> None:
        """Ctrl+C with nothing to stop or to copy: say which key leaves."""
        self.notify(with_keys("{app.quit} quits (Esc first, while writing); servers and jobs go on"), markup=False)

    def action_toggle_theme(self) -> None:
        self.theme = LIGHT.name if self.theme == DARK.name else DARK.name

    def action_keys(self) -> None:
        from vlmconsole.screens.widgets.dialogs import KeyHelp

        self.push_screen(KeyHelp(self.current_mode, [(str(s.number), s.title) for s in SCREENS]))


#: What screens rely on.
_CONSOLE: type[Console] = ConsoleApp


def _usable(chats: Path) -> bool:
    """A look at the conversations' file that is cheap enough to come before the first frame; False: open it and see."""
    if not os.access(chats if chats.exists() else chats.parent, os.W_OK):
        return False
    try:
        with closing(sqlite3.connect(f"{chats.as_uri()}?mode=ro", uri=True)) as database:
            database.execute("PRAGMA schema_version").fetchone()
    except sqlite3.Error:
        return not chats.exists()  # none yet: the app makes it
    return True


def run_console(home: Path | None = None) -> int:
    """Open the console on the lab of `home`; returns the exit code. Raises LabError before anything is drawn."""
    lab = Lab.open(home)
    mark = TerminalMark(lab.places.state / "terminals")
    heal_terminal(mark.take())
    try:
        return _run(lab)
    finally:
        mark.clear()


def paint_rarely() -> None:
    """Paint what changed SLOW_FPS times a second at most, before any screen is made: Textual does so 60 times."""
    setattr(textual.screen, "UPDATE_PERIOD", 1 / SLOW_FPS)  # noqa: B010 - it is marked final


def _run(lab: Lab) -> int:
    if not _usable(lab.places.chats):
        # Opened and closed again: what is wrong with the conversations is one line here, and a trace inside the app.
        from vlmconsole.chats.store import ChatStore

        ChatStore(lab.places.chats, lab.places.pictures).close()
    tame_pastes()
    if sys.__stderr__ is None or (not sys.__stderr__.isatty() and sys.stdout.isatty()):
        # Textual draws on standard error: with `2>log` nobody would see it.
        setattr(sys, "__stderr__", sys.__stdout__)  # noqa: B010 - it is marked final
    if lab.settings.slow_link:
        paint_rarely()
    app = ConsoleApp(lab, drawing=drawing_for(lab.settings.pictures))
    app.run()
    return app.return_code or 0
