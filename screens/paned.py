"""The base of every screen: first line, panes, last line. The panes are side by side, or one at a time where narrow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

from textual import events
from textual.app import ComposeResult
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static

from vlmconsole.screens.console import Console, console_of
from vlmconsole.screens.keys import bindings, reading_actions
from vlmconsole.screens.table import SCREENS
from vlmconsole.screens.widgets.keyline import KeyLine
from vlmconsole.screens.widgets.topbar import TopBar


class Pane(NamedTuple):
    """A pane by its title in the tabs and its widget's id."""

    title: str
    id: str


class PanedScreen(Screen[None]):
    """Subclasses name their entry in table.py and their PANES, and compose these in `compose_panes`.

    The style sheet shows one `.pane` alone on a narrow screen and under `-large`; what holds several panes has the
    class `pane-group`. Keys come from keys.py by the entry's name.
    """

    ENTRY: ClassVar[str] = ""
    PANES: ClassVar[tuple[Pane, ...]] = ()
    _reading: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, *args: Any, **kwargs: Any) -> None:
        if "ENTRY" in cls.__dict__:
            cls.BINDINGS = bindings(("anywhere", "reading"), cls.ENTRY)
            cls._reading = reading_actions(cls.ENTRY)
        super().__init_subclass__(*args, **kwargs)

    def __init__(self) -> None:
        super().__init__()
        self.pane = 0

    @property
    def console(self) -> Console:
        """The app, as screens know it."""
        return console_of(self)

    def compose(self) -> ComposeResult:
        title = next((entry.title for entry in SCREENS if entry.name == self.ENTRY), self.ENTRY)
        yield TopBar([(str(entry.number), entry.title) for entry in SCREENS], title)
        yield Static(id="panetabs")
        yield from self.compose_panes()
        yield KeyLine()

    def compose_panes(self) -> Iterable[Widget]:
        """Return what stands between the first line and the last."""
        raise NotImplementedError

    def mark_panes(self) -> None:
        """What has been mounted as a pane is one to the style sheet, too."""
        for pane in self.PANES:
            for part in self.query(f"#{pane.id}"):
                part.add_class("pane")
        self.mark_pane(self.pane)

    def on_mount(self) -> None:
        self.mark_panes()
        self.console.server_changed.subscribe(self, lambda _: self.show_server())
        self.show_server()

    def show_server(self) -> None:
        """The status line."""
        link, bar = self.console.link, self.query_one(TopBar)
        if link is None and self.console.no_server:
            bar.show("failed", f"{self.console.lab.settings.server} · failed", "")
        elif link is None:
            bar.show("starting", "…", "")
        else:
            bar.show(link.view.state, link.view.short, link.view.long)

    # -- keys ----------------------------------------------------------------------------------------------

    @property
    def typing(self) -> bool:
        """Is a text being typed? Then single letters are letters."""
        return self.focused is not None and self.focused.check_consume_key("a", "a")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Single-letter keys are off, and gone from the footer, while a text is being typed."""
        if action in self._reading and self.typing:
            return False
        return super().check_action(action, parameters)

    # -- panes ---------------------------------------------------------------------------------------------

    def there(self) -> list[int]:
        """Return the panes that can be gone to now, as places among PANES."""
        return list(range(len(self.PANES)))

    def target(self, index: int) -> Widget | None:
        """Return what takes the focus in a pane: the pane, else the first list in it."""
        pane = self.query_one(f"#{self.PANES[index].id}")
        parts = (pane, *pane.query("*").results())
        return next((part for part in parts if part.focusable and not part.check_consume_key("a", "a")), None)

    def action_pane(self, by: int) -> None:
        panes = self.there()
        at = panes.index(self.pane) if self.pane in panes else 0
        self.go_to_pane(panes[(at + by) % len(panes)])

    def go_to_pane(self, index: int) -> None:
        """Show (on a narrow screen) and focus one of PANES."""
        self.mark_pane(index)
        target = self.target(index)
        if target is not None:
            target.focus()
        else:
            self.set_focus(None)

    def mark_pane(self, index: int) -> None:
        """That is the pane where one is: alone in sight on a narrow screen, bold among the tabs."""
        self.pane = index
        for number, pane in enumerate(self.PANES):
            for part in self.query(f"#{pane.id}"):
                part.set_class(number == index, "-current")
        for group in self.query(".pane-group"):
            group.set_class(bool(group.query(f"#{self.PANES[index].id}")), "-current")
        panes = self.there()
        pieces: list[Any] = []
        for number, pane in enumerate(self.PANES):
            if number in panes:
                pieces += [(pane.title, "bold" if number == index else "$faint"), "   "]
        self.query_one("#panetabs", Static).update(Content.assemble(*pieces, ("[ ] panes", "$faint")))

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        self.refresh_bindings()
        ids = {part.id for part in event.widget.ancestors_with_self}
        number = next((number for number, pane in enumerate(self.PANES) if pane.id in ids), self.pane)
        if number != self.pane:
            self.mark_pane(number)

    def action_large(self) -> None:
        """z: the pane where one is over the whole screen, and back."""
        self.toggle_class("-large")
