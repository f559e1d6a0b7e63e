"""What an action or a dialog's answer cannot do (a full disk, a damaged record) is told; the console goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import Any

from textual.app import App
from textual.dom import DOMNode

from vlmconsole.errors import LabError, refusal
from vlmconsole.text.plain import one_line


class FaultsTold(App[None]):
    """Refusals of the lab and of the machine. Faults of our own end the console with their trace, as ever."""

    async def run_action(
        self,
        action: Any,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        try:
            return await super().run_action(action, default_namespace, namespaces)
        except (LabError, OSError) as error:
            self._tell(error)
            return True

    def push_screen(self, screen: Any, callback: Callable[[Any], Any] | None = None, *args: Any, **more: Any) -> Any:
        """Textual's, with a callback whose refusals are told."""
        return super().push_screen(screen, callback and self._guarded(callback), *args, **more)

    def _guarded(self, callback: Callable[[Any], Any]) -> Callable[[Any], Awaitable[None]]:
        async def called(result: Any) -> None:
            try:
                done = callback(result)
                if isawaitable(done):
                    await done
            except (LabError, OSError) as error:
                self._tell(error)

        return called

    def _tell(self, error: LabError | OSError) -> None:
        self.notify(one_line(refusal(error), 300), severity="error", markup=False)
