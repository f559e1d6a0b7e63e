"""What the screens beside the chat share: they look now and then, rest while hidden, and keep the status line true."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from textual.screen import Screen
from textual.timer import Timer

from vlmconsole.screens.background import in_background
from vlmconsole.screens.widgets.topbar import TopBar

if TYPE_CHECKING:
    from vlmconsole.app import ConsoleApp


class LookingScreen(Screen[None]):
    """A screen with a TopBar. `_look` reads and shows, sets `_looking` back to False, and may mind `_once_more`."""

    def __init__(self) -> None:
        super().__init__()
        self._timer: Timer | None = None
        self._looking = self._once_more = False

    @property
    def console(self) -> ConsoleApp:
        """The app, by its own type."""
        return cast("ConsoleApp", self.app)

    def begin_looking(self, period: float) -> None:
        """From now on: the status line, and a look every `period` seconds while the screen is shown."""
        self.console.server_changed.subscribe(self, lambda _: self.show_server())
        self.show_server()
        self._timer = self.set_interval(period, self.look)

    def on_screen_suspend(self) -> None:
        if self._timer is not None:
            self._timer.pause()

    def on_screen_resume(self) -> None:
        if self._timer is not None:
            self._timer.resume()
            self.look()

    def look(self) -> None:
        """Look now, in the background. A look that is under way is enough, but for screens that mind `_once_more`."""
        if self._looking:
            self._once_more = True
            return
        self._looking = True
        in_background(self, self._look, "look")

    async def _look(self) -> None:
        raise NotImplementedError

    def show_server(self) -> None:
        """The status line."""
        link, bar = self.console.link, self.query_one(TopBar)
        if link is None and self.console.no_server:
            bar.show("failed", f"{self.console.lab.settings.server} · failed", "")
        elif link is None:
            bar.show("starting", "…", "")
        else:
            bar.show(link.view.state, link.view.short, link.view.long)
