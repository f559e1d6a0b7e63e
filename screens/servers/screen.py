"""The servers screen: profiles, the chosen server with its settings wanted against read back, its log, calculators."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widget import Widget

from vlmconsole.client.adapter_effect import Effect
from vlmconsole.desks.servers import ServerDesk, ServerLine, ServersView
from vlmconsole.engines.profile import ServerProfile
from vlmconsole.errors import LabError
from vlmconsole.runs.folder import to_json
from vlmconsole.screens.background import in_background
from vlmconsole.screens.looking import LookingScreen
from vlmconsole.screens.paned import Pane
from vlmconsole.screens.servers.calculators import Calculators, shape_for, worked_out
from vlmconsole.screens.servers.list import ServerList
from vlmconsole.screens.servers.sheet import ServerSheet
from vlmconsole.screens.widgets.dialogs import Confirm, Reader
from vlmconsole.screens.widgets.filtered_table import FilteredTable
from vlmconsole.screens.widgets.item_list import ItemList
from vlmconsole.screens.widgets.log_view import LogLines, LogView
from vlmconsole.screens.widgets.said import Said
from vlmconsole.text.plain import inert, one_line


class ServersScreen(LookingScreen[ServerDesk]):
    """See keys.py for its keys."""

    ENTRY = "servers"
    PANES = (Pane("Profiles", "server-left"), Pane("Server", "server-sheet"), Pane("Log", "log"))
    SLOW_PERIOD = 5.0
    CSS_PATH = "servers.tcss"
    table: FilteredTable[ServerList]

    def __init__(self) -> None:
        super().__init__()
        self.listing = ServerList(id="server-list")
        self.table = FilteredTable(self.listing, "name, engine or state", Content(""), id="server-table")
        self.sheet = ServerSheet(id="server-sheet")
        self.log_view = LogView(id="log")
        self.calc = Said(id="server-calc")
        self.faults = Said(id="server-faults")
        self.view = ServersView()
        self.doing: dict[str, str] = {}  # profile → what is being done with it, and its phase
        #: What was found of its adapters, by profile and when that server was started.
        self._effects: dict[tuple[str, float | None], dict[str, Effect]] = {}

    def compose_panes(self) -> Iterable[Widget]:
        with Horizontal(classes="panes"):
            with Vertical(id="server-left"):
                yield from (self.table, self.faults, self.calc)
            with Vertical(id="server-side", classes="pane-group"):
                yield from (self.sheet, self.log_view)

    # -- looking -------------------------------------------------------------------------------------------

    def open_desk(self) -> ServerDesk:
        return ServerDesk(self.console.lab.places)

    def close_desk(self, desk: ServerDesk) -> None:
        desk.close()

    async def look_once(self) -> None:
        name = self.line.profile.name if self.line is not None else self._in_use()
        page = self.log_view.page
        self._show(await self.in_thread(lambda desk: desk.look(name, page)))

    def show_fault(self, error: LabError | OSError) -> None:
        self.faults.say(Content(inert(str(error))).stylize("$error"))
        self.faults.display = True

    def _fill(self) -> None:
        words = self.table.field.value.lower().split()
        self.listing.show_from(tuple(line for line in self.view.lines if holds(line, words)), self._in_use())

    def _show(self, view: ServersView) -> None:
        page = self.log_view.page
        self.view = view
        self._fill()
        problems = [Content(one_line(problem, 300)).stylize("$warning") for problem in view.problems]
        self.faults.say(Content("\n").join(problems))
        self.faults.display = bool(problems)
        self._show_calc()
        line, sheet = self.line, view.sheet
        if sheet is None or line is None or sheet.line.profile.name != line.profile.name:
            if line is not None:
                self._blank()
                self.look()  # the cursor went on meanwhile
            return
        doing = self.doing.get(line.profile.name, "")
        effects = self._effects.get((line.profile.name, line.status.since), {})
        self.sheet.show(sheet, " · ".join(filter(None, (doing, view.quiet))), effects)
        self.log_view.grow(sheet.log, page)
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
            "\n".join(line for line in lines if line and not line.startswith("Not included")),
        )
        self.calc.say(text)

    # -- parts and moving about ----------------------------------------------------------------------------

    def _in_use(self) -> str:
        """The profile that answers in the chat."""
        link = self.console.link
        return link.profile.name if link is not None else self.console.lab.settings.server

    @property
    def line(self) -> ServerLine | None:
        return self.listing.chosen

    @property
    def profile(self) -> ServerProfile | None:
        return self.line.profile if self.line is not None else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return what cannot be done with the chosen server is off, and gone from the footer."""
        line = self.line
        state = line.status.state if line is not None else ""
        if action == "start":
            return state in ("stopped", "ended", "unreachable") and self._ours(line)
        if action in ("stop", "restart"):
            return state in ("ready", "starting", "unreachable") and self._ours(line)
        if action == "effect":
            effective = self.view.sheet.effective if self.view.sheet is not None else None
            return effective is not None and bool(effective.adapters)
        if action in ("flush", "use"):
            return state == "ready" if action == "flush" else line is not None
        if action == "folder":
            return self.log_view.page is not None
        return super().check_action(action, parameters)

    def _ours(self, line: ServerLine | None) -> bool:
        return line is not None and line.profile.launch is not None

    def on_filtered_table_filtered(self, event: FilteredTable.Filtered) -> None:
        event.stop()
        self._fill()

    def on_item_list_chosen(self, event: ItemList.Chosen) -> None:
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

    def on_item_list_opened(self, event: ItemList.Opened) -> None:
        event.stop()
        self.action_open()

    def action_move(self, by: int) -> None:
        if isinstance(self.focused, LogLines):
            self.log_view.move(by)
        elif isinstance(self.focused, ServerSheet):
            super().action_move(by)
        else:
            self.listing.choose(self.listing.cursor + by)

    def action_edge(self, by: int) -> None:
        if isinstance(self.focused, LogLines):
            self.log_view.edge(by)
        else:
            super().action_edge(by)

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
            message = await asyncio.to_thread(run)
            self.notify(inert(message), markup=False)
        except LabError as error:
            self.notify(inert(error.full_message), severity="error", markup=False, timeout=15)
        finally:
            self.doing.pop(name, None)
            self.look()

    def _reporter(self, name: str, what: str) -> Callable[[str, float], None]:
        """Called from the starting thread with each phase."""

        def told(phase: str, seconds: float) -> None:
            self.doing[name] = f"{what}: {one_line(phase, 60)} {seconds:.0f} s"

        return told

    def action_start(self) -> None:
        """s: queue the job that serves it, and wait until it answers."""
        profile = self.profile
        if profile is not None:
            name, report = profile.name, self._reporter(profile.name, "starting")
            start = partial(self._do, name, "starting", lambda desk: desk.start(name, report))
            in_background(self, start, f"do-{name}")

    def action_stop(self) -> None:
        """x: after saying who loses it."""
        self._after_confirm("Stop", "stopping", lambda name, report: lambda desk: desk.stop(name))

    def action_restart(self) -> None:
        """r: stop it and start it anew, with its profile as it is written now."""
        self._after_confirm("Restart", "restarting", lambda name, report: lambda desk: desk.restart(name, report))

    def _after_confirm(
        self, verb: str, what: str, make: Callable[[str, Callable[[str, float], None]], Callable[[ServerDesk], str]]
    ) -> None:
        line = self.line
        if line is None:
            return
        name = line.profile.name
        call = make(name, self._reporter(name, what))

        def decided(yes: bool | None) -> None:
            if yes:
                in_background(self, partial(self._do, name, what, call), f"do-{name}")

        price = line.profile.price_per_hour
        billed = " The machine keeps being billed." if price and verb == "Stop" else ""
        self.app.push_screen(
            Confirm(
                f"{verb} server {name}?", f"Chats and jobs that use it are interrupted, in other consoles too.{billed}"
            ),
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
        """a: whether its adapters change an answer at all; a server may take a name and answer with its base."""
        line = self.line
        if line is None:
            return
        if self.view.quiet:
            self.notify(inert(self.view.quiet), severity="warning", markup=False)
            return
        name, since = line.profile.name, line.status.since

        def asked(desk: ServerDesk) -> str:
            self._effects[name, since] = effects = desk.effects(name)
            message = "; ".join(f"{one_line(adapter, 60)}: {effect.state}" for adapter, effect in effects.items())
            return f"{name}: {message or 'no adapters loaded'}"

        in_background(self, partial(self._do, name, "checking its adapters", asked), f"do-{name}")

    def action_use(self) -> None:
        """u: let it answer in the chat."""
        if self.profile is not None:
            self.console.choose_server(self.profile.name)
            self.notify(f"chat now uses {self.profile.name}", markup=False)

    def action_calc(self) -> None:
        """c: both calculators, for the chosen profile's model."""
        self.app.push_screen(Calculators(self.profile))

    def action_folder(self) -> None:
        """o: the folder that its log is in."""
        if self.log_view.page is not None:
            self.open_folder(self.log_view.page.path.parent)

    def action_open(self) -> None:
        """Enter: everything that is known, also what the server said word by word."""
        line, sheet = self.line, self.view.sheet
        if line is None or sheet is None or sheet.line.profile.name != line.profile.name:
            return
        profile = line.profile
        parts = [("profile", to_json(profile.model_dump(mode="json", exclude_defaults=True)))]
        if sheet.effective is not None:
            parts.append(("raw server response", to_json(sheet.effective.raw)))
        if line.job is not None:
            parts.append(("job", f"{line.job.id}  {line.job.state}\n{line.job.run or ''}"))
        if sheet.log is not None:
            parts.append(("log", str(sheet.log.path)))
        parts.append(
            ("from a shell", f"vlmconsole servers show {profile.name}\nvlmconsole servers start {profile.name}")
        )
        self.app.push_screen(Reader(profile.name, [(heading, inert(text)) for heading, text in parts]))


def holds(line: ServerLine, words: Iterable[str]) -> bool:
    """Does a server's line hold all the words?"""
    text = f"{line.profile.name} {line.profile.engine} {line.status.word}".lower()
    return all(word in text for word in words)
