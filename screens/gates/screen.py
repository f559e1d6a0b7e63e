"""The gates screen: runs and plans │ conditions over pictures and claims. Each act has its `vlmconsole gates` twin."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widget import Widget

from vlmconsole.desks import forms
from vlmconsole.desks.gates import GateDesk, GateEntry, OpenedEntry
from vlmconsole.desks.queue import Desk
from vlmconsole.errors import LabError
from vlmconsole.gates.binding import record
from vlmconsole.gates.sample_images import SampleImages
from vlmconsole.gates.samples import Case
from vlmconsole.runs.folder import RunFolder
from vlmconsole.screens.background import in_background
from vlmconsole.screens.gates.panes import EMPTY, Evidence, Spoken, Verdicts, audit_text, claims_text
from vlmconsole.screens.gates.rows import EntryRows, gate_of
from vlmconsole.screens.gates.sheets import case_parts, gate_parts
from vlmconsole.screens.looking import LookingScreen
from vlmconsole.screens.paned import Pane
from vlmconsole.screens.pictures.zoom import Zoom
from vlmconsole.screens.widgets.dialogs import Reader
from vlmconsole.screens.widgets.filtered_table import FilteredTable
from vlmconsole.screens.widgets.item_list import ItemList
from vlmconsole.text.counts import many
from vlmconsole.text.plain import inert
from vlmconsole.vision.images import Picture, PictureError

BELOW = 2  # the first pane that lies below the conditions


class GatesScreen(LookingScreen[GateDesk]):
    """See keys.py for its keys."""

    ENTRY = "gates"
    PANES = (
        Pane("Runs", "entries"),
        Pane("Conditions", "verdicts"),
        Pane("Images", "evidence"),
        Pane("Claims", "claims"),
        Pane("Audit", "audit"),
    )
    CSS_PATH = "gates.tcss"
    table: FilteredTable[EntryRows]

    def __init__(self) -> None:
        super().__init__()
        self.entries = EntryRows(id="entry-rows")
        # Only on a narrow screen is it said in the list's place that there is nothing; else in the conditions'.
        self.table = FilteredTable(self.entries, "run, plan or verdict", EMPTY, id="entries")
        self.verdicts = Verdicts(id="verdicts")
        self.evidence = Evidence(lambda: self.console.drawing, self._load, id="evidence")
        self.claims, self.audit = Spoken(id="claims"), Spoken(id="audit")
        self.opened: OpenedEntry | None = None
        self._listing: list[GateEntry] = []

    def compose_panes(self) -> Iterable[Widget]:
        with Horizontal(classes="panes"):
            yield self.table
            with Vertical(id="gate-side", classes="pane-group"):
                yield self.verdicts
                with Horizontal(id="gate-below", classes="pane-group"):
                    yield from (self.evidence, self.claims, self.audit)

    # -- looking -------------------------------------------------------------------------------------------

    def open_desk(self) -> GateDesk:
        return GateDesk(self.console.lab.places)

    def _load(self, case: Case) -> Picture:
        """A case's picture; called in a thread of its own."""
        run = self.opened.entry.path if self.opened is not None else self.console.lab.places.runs
        return SampleImages(self.console.lab.places).image(case.after, run)

    async def look_once(self) -> None:
        chosen = self.entries.chosen
        self._show(*await self.in_thread(lambda desk: _read(desk, chosen)))

    def show_fault(self, error: LabError | OSError) -> None:
        self.verdicts.show_empty(Content(f"✗ {inert(str(error))}").stylize("$error"))

    def _show(self, listing: list[GateEntry], opened: OpenedEntry | None) -> None:
        self._listing = listing
        self._fill()
        if opened is not None and self._is_another(opened):
            self._blank()
            self.look()  # the cursor went on meanwhile
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

    def _is_another(self, opened: OpenedEntry) -> bool:
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
        words = self.table.field.value.lower().split()
        matches = [
            e for e in self._listing if all(w in f"{e.name} {e.plan} {e.verdict} {e.kind}".lower() for w in words)
        ]
        self.entries.show(matches)
        runs = sum(entry.kind == "run" for entry in self._listing)
        plans = len(self._listing) - runs
        title = f" {runs} run{'s' * (runs != 1)} · {plans} frozen plan{'s' * (plans != 1)}"
        head = Content.assemble(
            (title, "$muted"), (f"  {many(len(matches), 'match', 'matches')}" if words else "", "$accent")
        )
        self.table.show_head(head, empty=not self._listing)

    # -- parts and moving about ----------------------------------------------------------------------------

    def on_item_list_chosen(self, event: ItemList.Chosen) -> None:
        event.stop()
        if event.view is self.entries:
            self._blank()
            self.look()
        elif event.view is self.verdicts.rows:
            self._show_gate(first=True)
        else:
            self.evidence.show_case(self.evidence.rows.chosen)

    def on_item_list_opened(self, event: ItemList.Opened) -> None:
        event.stop()
        self.action_open()

    def on_filtered_table_filtered(self, event: FilteredTable.Filtered) -> None:
        event.stop()
        self._fill()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return what has no object is off, and gone from the footer."""
        if action in ("open", "zoom") and self.opened is None:
            return False
        if action in ("check", "run_audit", "folder") and (self.opened is None or self.opened.entry.kind == "plan"):
            return False
        return super().check_action(action, parameters)

    def mark_pane(self, index: int) -> None:
        if index > BELOW:  # claims and audit share a place; pictures stay beside whichever was last
            self.set_class(index == len(self.PANES) - 1, "-audit")
        super().mark_pane(index)

    # -- doing ---------------------------------------------------------------------------------------------

    def action_open(self) -> None:
        """Enter: from the list to the conditions; a condition's figures, or a picture's answers, in full."""
        opened = self.opened
        if opened is None:
            return
        if self.focused is self.entries:
            self.go_to_pane(1)
        elif self.focused is self.evidence.rows and self.evidence.rows.chosen is not None:
            case = self.evidence.rows.chosen
            self.app.push_screen(Reader(f"{case.after.id}, {case.outcome}", case_parts(case)))
        else:
            item = self.verdicts.rows.chosen
            self.app.push_screen(Reader(opened.entry.name, gate_parts(opened, item)))

    def action_zoom(self) -> None:
        """z: the chosen picture over the whole screen."""
        case = self.evidence.rows.chosen
        if case is None:
            self.notify("no image selected", markup=False)
            return
        in_background(self, partial(self._zoom, case), "zoom", exclusive=True)

    async def _zoom(self, case: Case) -> None:
        try:
            picture = await asyncio.to_thread(self._load, case)
        except PictureError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        self.app.push_screen(Zoom(picture, self.console.drawing))

    def action_check(self) -> None:
        """c: judge now, and add the verdict to the ledger."""
        if self.opened is not None:
            in_background(self, partial(self._check, self.opened), "check", exclusive=True)

    async def _check(self, opened: OpenedEntry) -> None:
        def judged(desk: GateDesk) -> bool:
            now = desk.open(opened.entry)
            return now.verdict is not None and record(now.verdict, RunFolder(now.entry.path), desk.ledger)

        try:
            added = await self.in_thread(judged)
        except (LabError, OSError) as error:
            self.notify(f"cannot add the verdict to the ledger: {error}", severity="error", markup=False)
            return
        self.notify("verdict added to the ledger" if added else "this verdict is already in the ledger", markup=False)
        self.look()

    def action_run_audit(self) -> None:
        """A: queue an audit of the run; its checklist appears here when it has ended."""
        if self.opened is not None:
            in_background(self, partial(self._run_audit, self.opened.entry.name), "audit", exclusive=True)

    async def _run_audit(self, name: str) -> None:
        places = self.console.lab.places

        def add() -> int:
            desk = Desk(places)
            try:
                return desk.add(forms.planned("audit", [f"run={name}", "replay=false"], places))
            finally:
                desk.close()

        try:
            number = await asyncio.to_thread(add)
        except LabError as error:
            self.notify(error.full_message, severity="error", markup=False)
            return
        self.notify(f"job {number} audits {name} · the checklist appears here", markup=False)

    def action_folder(self) -> None:
        """o: the run's folder."""
        if self.opened is not None:
            self.open_folder(self.opened.entry.path)


def _read(desk: GateDesk, chosen: GateEntry | None) -> tuple[list[GateEntry], OpenedEntry | None]:
    """One look, in the desk's thread: the list, and the chosen entry (else the first) opened."""
    listing = desk.listing()
    match = next((e for e in listing if chosen and (e.kind, e.name) == (chosen.kind, chosen.name)), None)
    entry = match or (listing[0] if listing else None)
    return listing, desk.open(entry) if entry is not None else None
