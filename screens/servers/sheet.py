"""The chosen server in full: how it is, what it costs, its settings wanted against read back, its adapters."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content

from vlmconsole.client.adapter_effect import Effect
from vlmconsole.desks.servers import Sheet
from vlmconsole.engines.compared import Setting
from vlmconsole.engines.registry import find_engine
from vlmconsole.screens.theme import painted
from vlmconsole.screens.widgets.said import Said
from vlmconsole.text.fitting import fitted
from vlmconsole.text.plain import inert, one_line
from vlmconsole.text.signs import sign_of
from vlmconsole.text.times import duration

STATES = {"same": (" ", ""), "differs": ("≠", "$warning"), "unknown": (" ", "$muted")}
Piece = Content | str | tuple[str, str]


class ServerSheet(VerticalScroll):
    """`show` as often as one likes."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._head, self._settings, self._rest = (Said(id=f"server-{part}") for part in ("head", "settings", "rest"))
        self._sheet: Sheet | None = None
        self._server = self._quiet = ""
        self._effects: Mapping[str, Effect] = {}

    def compose(self) -> ComposeResult:
        yield from (self._head, self._settings, self._rest)

    def on_resize(self) -> None:
        if self._sheet is not None:
            self.show(self._sheet, self._quiet, self._effects)

    @property
    def server(self) -> str:
        """The name of the profile that is shown; "" for none."""
        return self._server

    def begin(self, name: str) -> None:
        """Show a profile's name alone, until it has been asked."""
        self._server, self._sheet = name, None
        self._head.say(Content.assemble((one_line(name, 80), "bold"), ("  checking …", "$muted")))
        self._settings.say(Content(""))
        self._rest.say(Content(""))

    def show(self, sheet: Sheet | None, quiet: str = "", effects: Mapping[str, Effect] | None = None) -> None:
        """`effects` of the adapters that were asked about, by the server's names for them."""
        effects = effects or {}
        self._sheet, self._quiet, self._effects = sheet, quiet, effects
        self._server = sheet.line.profile.name if sheet is not None else ""
        if sheet is None:
            self._head.say(Content("no server profiles yet · add a file to the lab's servers folder").stylize("$muted"))
            self._settings.say(Content(""))
            self._rest.say(Content(""))
            return
        self._head.say(_head(sheet, quiet))
        self._settings.say(_table(sheet.settings, max(40, self.scrollable_content_region.width or self.size.width - 4)))
        self._rest.say(_rest(sheet, effects))


def _head(sheet: Sheet, quiet: str) -> Content:
    profile, status = sheet.line.profile, sheet.line.status
    mark, style = painted(sign_of(status.word))
    since = f" for {duration(time.time() - status.since)}" if status.since and status.state != "stopped" else ""
    pieces: list[Piece] = [(profile.name, "bold"), "  ", (f"{mark} {status.word}", style), (since, "$muted")]
    if sheet.line.why:
        pieces.append((f"   {one_line(sheet.line.why, 300)}", "$muted"))
    facts = [profile.title, find_engine(profile.engine).label, status.base_url or profile.base_url]
    facts += [f"ssh {profile.ssh_host}"] if profile.ssh_host else []
    facts += [f"pid {status.pid}"] if status.pid else []
    facts += [f"job {sheet.line.job.id}"] if sheet.line.job is not None else []
    pieces += ["\n", (" · ".join(one_line(fact, 80) for fact in facts if fact), "$muted")]
    if sheet.cost:
        released = status.state in ("stopped", "ended")
        pieces += ["\n", (one_line(sheet.cost, 200), "$warning" if released else "$muted")]
    if quiet:
        pieces += ["\n", (one_line(quiet, 200), "$warning")]
    return Content.assemble(*pieces)


def _table(settings: tuple[Setting, ...], width: int) -> Content:
    """Setting, wanted, read back, note; only lines of which one side says something."""
    shown_lines = [line for line in settings if line.wanted or line.read]
    if not shown_lines:
        return Content("\nno settings known").stylize("$muted")
    named = min(30, max(cell_len(line.name) for line in shown_lines))
    asked = min(22, max(6, *(cell_len(line.wanted) for line in shown_lines)))
    room = max(10, width - named - asked - 6)
    lines = [Content(f"\n  {'setting':<{named}}  {'wanted':<{asked}}  reported").stylize("$faint")]
    for line in shown_lines:
        sign, style = STATES[line.state]
        read = one_line(line.read or "not reported", 200)
        pieces: list[Piece] = [(f"{sign} ", style), (f"{fitted(one_line(line.name), named)}  ", "$muted")]
        pieces += [f"{fitted(one_line(line.wanted or '–'), asked)}  ", (read, style)]
        if line.note:
            pieces.append((f" {one_line(line.note, 200)}", "$muted"))
        lines.append(Content.assemble(*pieces).truncate(named + asked + 6 + room, ellipsis=True))
    return Content("\n").join(lines)


def _rest(sheet: Sheet, effects: Mapping[str, Effect]) -> Content:
    pieces: list[Piece] = []
    effective = sheet.effective
    if effective is None and sheet.unread and sheet.line.status.state == "ready":  # else the state says it already
        pieces.append((f"\nsettings not reported: {one_line(sheet.unread, 400)}", "$muted"))
    if effective is not None:
        pieces += [("\nadapters  ", "$muted"), "" if effective.adapters else ("none loaded", "$muted")]
        for name in effective.adapters:
            # A server may take a name and answer with its base all the same.
            effect = effects.get(name)
            mark, style = ("?", "$muted") if effect is None else painted(sign_of(effect.state))
            label = "effect unknown · a checks it against the base model" if effect is None else str(effect)
            pieces += [(f"\n{mark} ", style), one_line(name, 60), (f"   {one_line(label, 300)}", "$muted")]
        pieces.append((f"\n{one_line(effective.cached_rule, 400)}", "$muted"))
        pieces += [(f"\n{one_line(note, 400)}", "$muted") for note in effective.notes]
    pieces += [(f"\n⚠ {one_line(warning, 400)}", "$warning") for warning in sheet.line.profile.warnings()]
    if sheet.line.profile.notes:
        pieces.append((f"\n{inert(sheet.line.profile.notes)}", "$muted"))
    return Content.assemble(*pieces)
