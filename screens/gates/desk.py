"""The gates screen's furniture: runs and plans │ conditions over pictures and claims. It reads beside the screen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Input, Static

from vlmconsole.desks.gates import Case, Entry, GateDesk, Opened
from vlmconsole.errors import LabError
from vlmconsole.screens.gates.panes import EMPTY, Evidence, Spoken, Verdicts, audit_text, claims_text
from vlmconsole.screens.gates.rows import EntryRows, Picked, gate_of
from vlmconsole.screens.keys import bindings, reading_actions
from vlmconsole.screens.looking import LookingScreen
from vlmconsole.screens.table import SCREENS
from vlmconsole.screens.widgets.field import Field
from vlmconsole.screens.widgets.keyline import KeyLine
from vlmconsole.screens.widgets.said import Said
from vlmconsole.screens.widgets.topbar import TopBar
from vlmconsole.text.plain import inert
from vlmconsole.vision.images import Picture

_READING = reading_actions("gates")
PANES = (
    ("Runs", "entries"),
    ("Conditions", "verdicts"),
    ("Pictures", "evidence"),
    ("Claims", "claims"),
    ("Audit", "audit"),
)
BELOW = 2  # the first pane that lies below the conditions
PERIOD = 2.0  # seconds between two looks
T = TypeVar("T")


class GatesDesk(LookingScreen):
    """Shows what is judged. Doing something about it is added by the class above."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(("anywhere", "reading"), "gates")
    CSS_PATH = "gates.tcss"
    AUTO_FOCUS = "EntryRows"

    def __init__(self) -> None:
        super().__init__()
        self.entries = EntryRows(id="entry-rows")
        self.field = Field(placeholder="run, plan or verdict", id="entry-filter", compact=True)
        self.entry_head = Said(id="entry-head")
        self.nothing = Said(id="entries-empty")  # on a narrow screen; else it is said in the conditions' place
        self.verdicts = Verdicts(id="verdicts")
        self.evidence = Evidence(lambda: self.console.drawing, self._load, id="evidence")
        self.claims, self.audit = Spoken(id="claims"), Spoken(id="audit")
        self.opened: Opened | None = None
        self.pane = 0
        self._listing: list[Entry] = []
        self._desk: GateDesk | None = None
        self._thread = ThreadPoolExecutor(1, "gates")
        self._trouble = ""

    def compose(self) -> ComposeResult:
        yield TopBar([(str(entry.number), entry.title) for entry in SCREENS], "Gates")
        yield Static(id="panetabs")
        with Horizontal(id="gate-panes"):
            with Vertical(id="entries"):
                yield from (self.entry_head, self.field, self.entries, self.nothing)
            with Vertical(id="gate-side"):
                yield self.verdicts
                with Horizontal(id="gate-below"):
                    yield from (self.evidence, self.claims, self.audit)
        yield KeyLine()

    def on_mount(self) -> None:
        self.nothing.say(EMPTY)
        self.field.cursor_blink = self.field.display = False
        self.begin_looking(PERIOD)
        self.go_to_pane(0)
        self.look()

    def on_unmount(self) -> None:
        self._thread.shutdown(wait=False)

    # -- looking -------------------------------------------------------------------------------------------

    async def in_thread(self, call: Callable[[GateDesk], T]) -> T:
        """Let `call` use the desk, in its thread. Raises LabError and OSError."""

        def run() -> T:
            if self._desk is None:
                self._desk = GateDesk(self.console.lab.places)
            return call(self._desk)

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    def _load(self, case: Case) -> Picture:
        """A case's picture; called in a thread of its own."""
        run = self.opened.entry.path if self.opened is not None else self.console.lab.places.runs
        return GateDesk(self.console.lab.places).images.image(case.after, run)

    async def _look(self) -> None:
        try:
            while True:
                self._once_more = False
                chosen = self.entries.chosen
                listing, opened = await self.in_thread(lambda desk, chosen=chosen: _read(desk, chosen))  # type: ignore[misc]
                self._show(listing, opened)
                if not self._once_more:
                    return
        except (LabError, OSError) as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                self.verdicts.show_empty(Content(f"✗ {inert(str(error))}").stylize("$error"))
        finally:
            self._looking = False

    def _show(self, listing: list[Entry], opened: Opened | None) -> None:
        self._trouble = ""
        self._listing = listing
        self._fill()
        if opened is not None and self._is_another(opened):
            self._blank()
            self._once_more = True  # the cursor went on meanwhile
            return
        if opened is None:
            self.opened = None
            self.verdicts.show_empty(EMPTY)
            self.evidence.show(None, None, first=True)
            for pane in (self.claims, self.audit):
                pane.say(Content(""))
            self.refresh_bindings()
            return
        if opened is self.opened:
            return
        before, self.opened = self.opened, opened
        first = before is None or (before.entry.kind, before.entry.name) != (opened.entry.kind, opened.entry.name)
        self.verdicts.show(opened, first=first)
        self._show_gate(first=first)
        self.claims.say(claims_text(opened))
        self.audit.say(audit_text(opened))
        self.refresh_bindings()

    def _is_another(self, opened: Opened) -> bool:
        """Whether the cursor stands on another entry than the one that was read."""
        chosen = self.entries.chosen
        return chosen is not None and (chosen.kind, chosen.name) != (opened.entry.kind, opened.entry.name)

    def _blank(self) -> None:
        """Until the chosen entry is read: no other one's verdict, which a key would act on, too."""
        if self.opened is None or not self._is_another(self.opened):
            return
        self.opened = None
        self.verdicts.show_empty(Content("reading …").stylize("$muted"))
        self.evidence.show(None, None, first=True)
        for pane in (self.claims, self.audit):
            pane.say(Content(""))
        self.refresh_bindings()

    def _show_gate(self, *, first: bool) -> None:
        item = self.verdicts.rows.chosen
        self.evidence.show(self.opened, gate_of(item) if item is not None else None, first=first)

    def _fill(self) -> None:
        words = self.field.value.lower().split()
        found = [e for e in self._listing if all(w in f"{e.name} {e.plan} {e.verdict} {e.kind}".lower() for w in words)]
        self.entries.show(found)
        self.entries.display = bool(self._listing)
        self.nothing.set_class(not self._listing, "-there")
        runs = sum(entry.kind == "run" for entry in self._listing)
        plans = len(self._listing) - runs
        said = f" {runs} run{'s' * (runs != 1)} · {plans} frozen plan{'s' * (plans != 1)}"
        self.entry_head.say(Content.assemble((said, "$muted"), (f"  {len(found)} found" if words else "", "$accent")))

    # -- parts ---------------------------------------------------------------------------------------------

    @property
    def typing(self) -> bool:
        """Is a text being typed? Then single letters are letters."""
        return isinstance(self.focused, Input)

    def on_picked_chosen(self, event: Picked.Chosen) -> None:
        event.stop()
        if event.view is self.entries:
            self._blank()
            self.look()
        elif event.view is self.verdicts.rows:
            self._show_gate(first=True)
        else:
            self.evidence.show_case(self.evidence.rows.chosen)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._fill()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.entries.focus()

    # -- moving about --------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Single-letter keys are off, and gone from the footer, while a text is being typed or have no object."""
        if action in _READING and self.typing:
            return False
        if action in ("open", "zoom") and self.opened is None:
            return False
        if action in ("check", "run_audit") and (self.opened is None or self.opened.entry.kind == "plan"):
            return False
        return super().check_action(action, parameters)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        self.refresh_bindings()
        for number, (_, name) in enumerate(PANES):
            inside = any(part.id == name for part in (event.widget, *event.widget.ancestors))
            if inside and number != self.pane:
                self._mark_pane(number)

    def action_pane(self, by: int) -> None:
        self.go_to_pane((self.pane + by) % len(PANES))

    def go_to_pane(self, index: int) -> None:
        """Show (on a narrow screen) and focus one of PANES."""
        self._mark_pane(index)
        (self.entries, self.verdicts.rows, self.evidence.rows, self.claims, self.audit)[index].focus()

    def _mark_pane(self, index: int) -> None:
        self.pane = index
        if index > BELOW:  # claims and audit share a place; pictures stay beside whichever was last
            self.set_class(index == len(PANES) - 1, "-audit")
        for number, (_, name) in enumerate(PANES):
            self.query_one(f"#{name}").set_class(number == index, "-current")
        self.query_one("#gate-side").set_class(index > 0, "-current")
        self.query_one("#gate-below").set_class(index >= BELOW, "-current")
        pieces: list[Any] = []
        for number, (title, _) in enumerate(PANES):
            pieces += [(title, "bold" if number == self.pane else "$faint"), "   "]
        self.query_one("#panetabs", Static).update(Content.assemble(*pieces, ("[ ] panes", "$faint")))

    def action_move(self, by: int) -> None:
        part = self.focused
        if isinstance(part, Picked):
            part.choose(part.cursor + by)
        elif isinstance(part, Spoken):
            part.scroll_relative(y=by, animate=False)

    def action_page(self, by: int) -> None:
        part = self.focused
        self.action_move(by * max(1, (part.size.height if part is not None else 10) - 1))

    def action_edge(self, by: int) -> None:
        """To the first or the last line."""
        self.action_move(by * 1_000_000)


def _read(desk: GateDesk, chosen: Entry | None) -> tuple[list[Entry], Opened | None]:
    """One look, in the desk's thread: the list, and the chosen entry (else the first) opened."""
    listing = desk.listing()
    found = next((e for e in listing if chosen and (e.kind, e.name) == (chosen.kind, chosen.name)), None)
    entry = found or (listing[0] if listing else None)
    return listing, desk.open(entry) if entry is not None else None
