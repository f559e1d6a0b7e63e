"""How a server is, in one record that commands and screens read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["stopped", "starting", "ready", "unreachable", "ended"]


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """How a server is. `why` says in words what "stopped", "ended" or "unreachable" came from. since: wall clock, s.

    answered: something is there, be it with an error. refused: it is there and takes no key of ours.
    silent: it takes connections and does not answer, as one that is frozen or very busy.
    waits: its job is in the queue, for what `why` says.
    """

    name: str
    state: State
    why: str = ""
    base_url: str = ""
    pid: int | None = None
    since: float | None = None
    log: str | None = None
    answered: bool = False
    refused: bool = False
    silent: bool = False
    waits: bool = False

    @property
    def amiss(self) -> bool:
        """Whether a server that was started, or answers, is not well; one that nobody started is just not there."""
        present = self.state == "unreachable" and (self.answered or (self.pid or self.since) is not None)
        return self.state == "ended" or present

    @property
    def word(self) -> str:
        """The state as a person is told it."""
        if self.refused:
            return "key refused"
        if self.waits:
            return "waiting"
        return "not reachable" if self.state == "unreachable" and not self.amiss else self.state
