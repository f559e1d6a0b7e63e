"""Keys and pastes work in the order in which they came, whichever widget has the focus when its turn comes.

Textual (8.2.8) puts each key into the queue of the widget that has the focus at that moment, and what no widget takes
goes up to the app through the queues of all its parents. Where keys come in a burst, as over a slow line or beside a
busy machine, those behind a Tab, a `/` or an Enter are in the old widget's queue before the focus has moved, and
letters overtake a Backspace. So the app hands out one key at a time: the next when all is done that this one began.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeGuard

from textual import events
from textual.app import App, ScreenStackError
from textual.message_pump import MessagePump
from textual.widget import Widget

#: Seconds that a key waits at most for the one before it: what hangs must not take the keyboard with it.
LONGEST = 3.0


class KeysInOrder(App[None]):
    """An app that hands out one key at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: deque[events.Key | events.Paste] = deque()
        self._in_hand: events.Key | events.Paste | None = None
        self._too_long: asyncio.TimerHandle | None = None

    async def on_event(self, event: events.Event) -> None:
        """A key or paste from the terminal waits for its turn; all else goes on as it is."""
        if not isinstance(event, events.Key | events.Paste) or event.is_forwarded:
            await super().on_event(event)
        elif self._in_hand is not None:
            self._waiting.append(event)
        else:
            await self._hand_out(event)

    async def _hand_out(self, event: events.Key | events.Paste) -> None:
        self._in_hand = event
        loop = asyncio.get_running_loop()
        self._too_long = loop.call_later(LONGEST, lambda: self.call_later(self._done, event))
        try:
            target = self._focus()
            await super().on_event(event)
            while _is_letter(event) and self._waiting and _writes(target, event):
                if not _is_letter(self._waiting[0]):
                    break
                await super().on_event(self._waiting.popleft())  # letters alone keep their order, and move no focus
        except BaseException:
            self._in_hand = None
            self._too_long.cancel()
            raise
        # On its way from the widget through its parents, unless the app itself took it at once.
        self._after(target if event.is_forwarded else self, partial(self._handled, event, target), event)

    def _focus(self) -> MessagePump:
        try:
            return self.focused or self.screen
        except ScreenStackError:  # before the first frame, and at the very end
            return self

    def _after(self, node: MessagePump, hop: Callable[[], Any], event: events.Key | events.Paste) -> None:
        """Run `hop` when `node` has handled what it has in its queue."""
        if not node.call_later(hop) and not self.call_later(partial(self._done, event)):
            self._in_hand = None

    def _handled(self, event: events.Key | events.Paste, node: MessagePump) -> None:
        """`node` has seen the key: on to its parent, or to what followed from the key once nobody else gets it."""
        parent = node._parent
        if event._stop_propagation or not event.is_forwarded or parent is None:
            focus = self._focus()
            self._after(focus, partial(self._followed, event, focus), event)
        else:
            self._after(parent, partial(self._handled, event, parent), event)

    def _followed(self, event: events.Key | events.Paste, node: MessagePump) -> None:
        """What the key had a widget say (Submitted, say) goes the same way up, right before this."""
        parent = node._parent
        if parent is None:
            self._after(self, partial(self._done, event), event)
        else:
            self._after(parent, partial(self._followed, event, parent), event)

    async def _done(self, event: events.Key | events.Paste) -> None:
        """The next one's turn."""
        if event is not self._in_hand:
            return
        self._in_hand = None
        if self._too_long is not None:
            self._too_long.cancel()
        if self._waiting:
            await self._hand_out(self._waiting.popleft())


def _writes(target: MessagePump, letter: events.Key) -> bool:
    """Whether the letter is text there: a field takes it before any binding. Fields themselves are imported later."""
    return isinstance(target, Widget) and target.check_consume_key(letter.key, letter.character)


def _is_letter(event: events.Key | events.Paste) -> TypeGuard[events.Key]:
    return isinstance(event, events.Key) and event.is_printable
