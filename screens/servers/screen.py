"""The servers screen: profiles, the chosen server with its settings wanted against read back, its log, calculators."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Static

from vlmconsole.client.adapter_effect import Effect
from vlmconsole.desks.servers import Line, Look, ServerDesk
from vlmconsole.engines.profile import ServerProfile
from vlmconsole.errors import LabError
from vlmconsole.runs import logfile
from vlmconsole.runs.folder import to_json
from vlmconsole.screens.background import in_background
from vlmconsole.screens.keys import bindings
from vlmconsole.screens.looking import LookingScreen
from vlmconsole.screens.servers.calculators import Calculators, shape_for, worked_out
from vlmconsole.screens.servers.list import ServerList
from vlmconsole.screens.servers.sheet import ServerSheet
from vlmconsole.screens.table import SCREENS
from vlmconsole.screens.widgets.dialogs import Confirm, Reader
from vlmconsole.screens.widgets.keyline import KeyLine
from vlmconsole.screens.widgets.log_view import LogLines, LogView
from vlmconsole.screens.widgets.said import Said
from vlmconsole.screens.widgets.topbar import TopBar
from vlmconsole.text.plain import inert, one_line

PERIOD, SLOW_PERIOD = 2.0, 5.0  # seconds between two looks
PANES = (("Profiles", "server-left"), ("Server", "server-sheet"), ("Log", "log"))
T = TypeVar("T")


class ServersScreen(LookingScreen):
    """See keys.py for its keys."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(("anywhere", "reading"), "servers")
    CSS_PATH = "servers.tcss"
    AUTO_FOCUS = "ServerList"

    def __init__(self) -> None:
        super().__init__()
        self.listing = ServerList(id="server-list")
        self.sheet = ServerSheet(id="server-sheet")
        self.log_view = LogView(id="log")
        self.calc = Said(id="server-calc")
        self.faults = Said(id="server-faults")
        self.found = Look()
        self.pane = 0
        self.doing: dict[str, str] = {}  # profile → what is being done with it, and its phase
        #: What was found of its adapters, by profile and when that server was started.
        self._effects: dict[tuple[str, float | None], dict[str, Effect]] = {}
        self._desk: ServerDesk | None = None
        self._thread = ThreadPoolExecutor(1, "servers")  # the queue's connection belongs to one thread
        self._trouble = ""

    def compose(self) -> ComposeResult:
        yield TopBar([(str(entry.number), entry.title) for entry in SCREENS], "Servers")
        yield Static(id="panetabs")
        with Horizontal(id="server-panes"):
            with Vertical(id="server-left"):
                yield self.listing
                yield self.faults
                yield self.calc
            with Vertical(id="server-side"):
                yield self.sheet
                yield self.log_view
        yield KeyLine()

    def on_mount(self) -> None:
        slow = self.console.lab.settings.slow_link
        self.begin_looking(SLOW_PERIOD if slow else PERIOD)
        self.go_to_pane(0)
        self.look()

    def on_unmount(self) -> None:
        self._thread.submit(lambda: self._desk.close() if self._desk is not None else None)
        self._thread.shutdown(wait=False)

    # -- looking -------------------------------------------------------------------------------------------

    async def in_thread(self, call: Callable[[ServerDesk], T]) -> T:
        """Let `call` use the desk, in its thread. Raises LabError."""

        def run() -> T:
            if self._desk is None:
                self._desk = ServerDesk(self.console.lab.places)
            return call(self._desk)

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    async def _look(self) -> None:
        line = self.listing.chosen
        page = self.log_view.page
        try:
            name = line.profile.name if line is not None else self._in_use()
            found = await self.in_thread(lambda desk: desk.look(name, page))
        except LabError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                self.faults.say(Content(inert(str(error))).stylize("$error"))
            return
        finally:
            self._looking = False
        self._trouble = ""
        self._show(found)

    def _show(self, found: Look) -> None:
        self.found = found
        self.listing.show(found.lines, self._in_use())
        problems = [Content(one_line(problem, 300)).stylize("$warning") for problem in found.problems]
        self.faults.say(Content("\n").join(problems))
        self.faults.display = bool(problems)
        self._show_calc()
        line, sheet = self.listing.chosen, found.sheet
        if sheet is None or line is None or sheet.line.profile.name != line.profile.name:
            if line is not None:
                self._blank()
                self.look()  # the cursor went on meanwhile
            return
        doing = self.doing.get(line.profile.name, "")
        effects = self._effects.get((line.profile.name, line.status.since), {})
        self.sheet.show(sheet, " · ".join(filter(None, (doing, found.quiet))), effects)
        page = self.log_view.page
        same = page is not None and sheet.log is not None and page.path == sheet.log.path
        if not same:
            self.log_view.follow(True)
        if sheet.log is not page:
            self.log_view.show(sheet.log, keep=same)
        self.refresh_bindings()

    def _show_calc(self) -> None:
        """The two results that are wanted most, for the chosen profile's model."""
        profile = self.profile
        shape, pictures, where = shape_for(profile)
        values = {
            "size": "448x336",
            "tokens": str((profile.context if profile else None) or 4096),
            "sequences": str((profile.running_limit if profile else None) or 4),
            "layers": str(shape.layers),
            "kv_heads": str(shape.kv_heads),
            "head_dim": str(shape.head_dim),
            "element": f"{shape.bytes_per_element:g}",
        }
        lines = worked_out(values, pictures, (), shape)
        text = Content.assemble(
            ("calculator", "$muted"),
            (f"  {one_line(where, 60)}  ", "$faint"),
            ("c", "$accent"),
            (" change\n", "$faint"),
            "\n".join(line for line in lines if line and not line.startswith("Not in it")),
        )
        self.calc.say(text)

    # -- parts and moving about ----------------------------------------------------------------------------

    def _in_use(self) -> str:
        """The profile that answers in the chat."""
        link = self.console.link
        return link.profile.name if link is not None else self.console.lab.settings.server

    @property
    def line(self) -> Line | None:
        return self.listing.chosen

    @property
    def profile(self) -> ServerProfile | None:
        return self.line.profile if self.line is not None else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What cannot be done with the chosen server is off, and gone from the footer."""
        line = self.line
        state = line.status.state if line is not None else ""
        if action == "start":
            return state in ("stopped", "ended", "unreachable") and self._ours(line)
        if action in ("stop", "restart"):
            return state in ("ready", "starting", "unreachable") and self._ours(line)
        if action == "effect":
            effective = self.found.sheet.effective if self.found.sheet is not None else None
            return effective is not None and bool(effective.adapters)
        if action in ("flush", "use"):
            return state == "ready" if action == "flush" else line is not None
        return super().check_action(action, parameters)

    def _ours(self, line: Line | None) -> bool:
        return line is not None and line.profile.launch is not None

    def on_server_list_chosen(self, event: ServerList.Chosen) -> None:
        event.stop()
        self.refresh_bindings()
        self._show_calc()
        self._blank()
        self.look()

    def _blank(self) -> None:
        """Until the chosen server is asked: its name alone, and no other one's settings and log."""
        if self.profile is not None and self.sheet.server != self.profile.name:
            self.sheet.begin(self.profile.name)
            self.log_view.show(None)

    def on_server_list_opened(self, event: ServerList.Opened) -> None:
        event.stop()
        self.action_open()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        self.refresh_bindings()
        for number, (_, name) in enumerate(PANES):
            here = event.widget.id == name or any(part.id == name for part in event.widget.ancestors)
            if here and number != self.pane:
                self._mark_pane(number)

    def action_pane(self, by: int) -> None:
        self.go_to_pane((self.pane + by) % len(PANES))

    def go_to_pane(self, index: int) -> None:
        """Show (on a narrow screen) and focus one of PANES."""
        self._mark_pane(index)
        (self.listing, self.sheet, self.log_view.lines)[index].focus()

    def _mark_pane(self, index: int) -> None:
        self.pane = index
        for number, (_, name) in enumerate(PANES):
            self.query_one(f"#{name}").set_class(number == index, "-current")
        self.query_one("#server-side").set_class(index > 0, "-current")
        pieces: list[Any] = []
        for number, (title, _) in enumerate(PANES):
            pieces += [(title, "bold" if number == self.pane else "$faint"), "   "]
        self.query_one("#panetabs", Static).update(Content.assemble(*pieces, ("[ ] panes", "$faint")))

    def action_move(self, by: int) -> None:
        if isinstance(self.focused, LogLines):
            self.focused.by(by)
            self.log_view.draw_head()
        elif isinstance(self.focused, ServerSheet):
            self.focused.scroll_relative(y=by, animate=False)
        else:
            self.listing.choose(self.listing.cursor + by)

    async def on_log_lines_reached(self, event: LogLines.Reached) -> None:
        event.stop()
        page = self.log_view.page
        if page is None:
            return
        new = await asyncio.to_thread(logfile.older if event.edge == "older" else logfile.newer, page)
        if self.log_view.page is page:
            self.log_view.show(new)

    def action_log(self) -> None:
        """l: the log, from wherever one is."""
        self.go_to_pane(2)

    # -- doing ---------------------------------------------------------------------------------------------

    async def _do(self, name: str, what: str, call: Callable[[ServerDesk], str]) -> None:
        """Do it in a thread of its own (a start takes long), and say what came of it."""
        if name in self.doing:
            self.notify(f"{name}: {self.doing[name]}", markup=False)
            return
        self.doing[name] = what
        self.look()

        def run() -> str:
            desk = ServerDesk(self.console.lab.places)
            try:
                return call(desk)
            finally:
                desk.close()

        try:
            said = await asyncio.to_thread(run)
            self.notify(inert(said), markup=False)
        except LabError as error:
            self.notify(inert(error.told), severity="error", markup=False, timeout=15)
        finally:
            self.doing.pop(name, None)
            self.look()

    def _told(self, name: str, what: str) -> Callable[[str, float], None]:
        """Called from the starting thread with each phase."""

        def told(phase: str, seconds: float) -> None:
            self.doing[name] = f"{what}: {one_line(phase, 60)} {seconds:.0f} s"

        return told

    def action_start(self) -> None:
        """s: queue the job that serves it, and wait until it answers."""
        profile = self.profile
        if profile is not None:
            name, told = profile.name, self._told(profile.name, "starting")
            start = partial(self._do, name, "starting", lambda desk: desk.start(name, told))
            in_background(self, start, f"do-{name}")

    def action_stop(self) -> None:
        """x: after saying who loses it."""
        self._after_confirm("Stop", "stopping", lambda name, told: lambda desk: desk.stop(name))

    def action_restart(self) -> None:
        """r: stop it and start it anew, with its profile as it is written now."""
        self._after_confirm("Restart", "restarting", lambda name, told: lambda desk: desk.restart(name, told))

    def _after_confirm(
        self, verb: str, what: str, make: Callable[[str, Callable[[str, float], None]], Callable[[ServerDesk], str]]
    ) -> None:
        line = self.line
        if line is None:
            return
        name = line.profile.name
        call = make(name, self._told(name, what))

        def decided(yes: bool | None) -> None:
            if yes:
                in_background(self, partial(self._do, name, what, call), f"do-{name}")

        price = line.profile.price_per_hour
        billed = " The machine it runs on stays billed." if price and verb == "Stop" else ""
        self.app.push_screen(
            Confirm(f"{verb} the server {name}?", f"Chats and jobs that use it lose it, also other consoles'.{billed}"),
            decided,
        )

    async def action_flush(self) -> None:
        """F: empty its prefix cache."""
        profile = self.profile
        if profile is None:
            return
        name = profile.name
        try:
            done = await self.in_thread(lambda desk: desk.flush(name))
        except LabError as error:
            self.notify(inert(str(error)), severity="error", markup=False)
            return
        self.notify(f"{name}: {inert(done.why)}", severity="information" if done.ok else "warning", markup=False)

    def action_effect(self) -> None:
        """e: whether its adapters change an answer at all; a server may take a name and answer with its base."""
        line = self.line
        if line is None:
            return
        if self.found.quiet:
            self.notify(inert(self.found.quiet), severity="warning", markup=False)
            return
        name, since = line.profile.name, line.status.since

        def asked(desk: ServerDesk) -> str:
            self._effects[name, since] = found = desk.effects(name)
            told = "; ".join(f"{one_line(adapter, 60)}: {effect.state}" for adapter, effect in found.items())
            return f"{name}: {told or 'names no adapter any more'}"

        in_background(self, partial(self._do, name, "asking base and adapter the same", asked), f"do-{name}")

    def action_use(self) -> None:
        """u: let it answer in the chat."""
        if self.profile is not None:
            self.console.choose_server(self.profile.name)
            self.notify(f"{self.profile.name} answers in the chat from now on", markup=False)

    def action_calc(self) -> None:
        """c: both calculators, for the chosen profile's model."""
        self.app.push_screen(Calculators(self.profile))

    def action_open(self) -> None:
        """Enter: everything that is known, also what the server said word by word."""
        line, sheet = self.line, self.found.sheet
        if line is None or sheet is None or sheet.line.profile.name != line.profile.name:
            return
        profile = line.profile
        parts = [("profile", to_json(profile.model_dump(mode="json", exclude_defaults=True)))]
        if sheet.effective is not None:
            parts.append(("read back, as it was said", to_json(sheet.effective.raw)))
        if line.job is not None:
            parts.append(("its job", f"{line.job.id}  {line.job.state}\n{line.job.run or ''}"))
        if sheet.log is not None:
            parts.append(("log", str(sheet.log.path)))
        parts.append(
            ("from a shell", f"vlmconsole servers show {profile.name}\nvlmconsole servers start {profile.name}")
        )
        self.app.push_screen(Reader(profile.name, [(heading, inert(text)) for heading, text in parts]))
