"""The gates screen: what a person can do about verdicts, each the twin of a `vlmconsole gates` command."""

from __future__ import annotations

import asyncio
from functools import partial

from vlmconsole.desks import forms
from vlmconsole.desks.gates import Case, GateDesk, Opened
from vlmconsole.desks.queue import Desk
from vlmconsole.errors import LabError
from vlmconsole.gates.binding import record
from vlmconsole.runs.folder import RunFolder
from vlmconsole.screens.background import in_background
from vlmconsole.screens.gates.desk import GatesDesk
from vlmconsole.screens.gates.rows import Picked
from vlmconsole.screens.gates.sheets import case_parts, gate_parts
from vlmconsole.screens.pictures.zoom import Zoom
from vlmconsole.screens.widgets.dialogs import Reader
from vlmconsole.vision.images import PictureError


class GatesScreen(GatesDesk):
    """Key actions on judged runs; see keys.py for the keys."""

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

    def on_picked_opened(self, event: Picked.Opened) -> None:
        event.stop()
        self.action_open()

    def action_zoom(self) -> None:
        """z: the chosen picture over the whole screen."""
        case = self.evidence.rows.chosen
        if case is None:
            self.notify("no picture is chosen", markup=False)
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

    async def _check(self, opened: Opened) -> None:
        def judged(desk: GateDesk) -> bool:
            now = desk.open(opened.entry)
            return now.verdict is not None and record(now.verdict, RunFolder(now.entry.path), desk.ledger)

        try:
            added = await self.in_thread(judged)
        except (LabError, OSError) as error:
            self.notify(f"the verdict could not be added to the ledger: {error}", severity="error", markup=False)
            return
        self.notify("the verdict is in the ledger" if added else "the ledger holds this verdict already", markup=False)
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
            self.notify(error.told, severity="error", markup=False)
            return
        self.notify(f"job {number} audits {name}; its checklist comes here", markup=False)

    def action_filter(self) -> None:
        """/: narrow the list."""
        self.go_to_pane(0)
        self.field.display = True
        self.field.focus()

    def action_leave(self) -> None:
        """Esc: out of the filter; else back to the list."""
        if self.typing or self.field.value:
            self.field.value = ""
            self.field.display = False
            self.entries.focus()
        else:
            self.go_to_pane(0)
