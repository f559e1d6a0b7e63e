"""One sign and one tone for each state, verdict and finding, so that colour is never its only bearer."""

from __future__ import annotations

from typing import Literal, NamedTuple

Tone = Literal["", "accent", "muted", "faint", "warning", "error"]

LATE_PASS = "PASS · frozen late"  # the verdict of gates that passed by a plan that was frozen after its training
#: a tone on a plain terminal, as rich names it
RICH_STYLES: dict[Tone, str] = {
    "": "",
    "accent": "green",
    "muted": "dim",
    "faint": "dim",
    "warning": "yellow",
    "error": "bold red",
}


class Sign(NamedTuple):
    mark: str
    tone: Tone

    @property
    def rich(self) -> str:
        """Its style on a plain terminal."""
        return RICH_STYLES[self.tone]


GOOD, BAD, UNSURE = Sign("✓", "accent"), Sign("✗", "error"), Sign("?", "warning")
CAUTION, NOTHING, QUIET = Sign("!", "warning"), Sign("–", "muted"), Sign("·", "muted")
WORKING, COMING, IDLE = Sign("●", "accent"), Sign("◌", "warning"), Sign("○", "muted")
PLAIN = Sign(" ", "")
CHOSEN = Sign("◆", "accent")

#: every word that a file, a server or a check uses for how something is
SIGNS: dict[str, Sign] = {
    # jobs and runs
    "running": WORKING,
    "starting": COMING,
    "stopping": COMING,
    "queued": IDLE,
    "done": GOOD,
    "failed": BAD,
    "lost": Sign("?", "error"),
    "cancelled": NOTHING,
    # cells of a sweep
    "valid": GOOD,
    "invalid": CAUTION,
    # servers
    "ready": WORKING,
    "waiting": COMING,
    "stopped": IDLE,
    "not reachable": IDLE,
    "ended": BAD,
    "unreachable": BAD,
    "key refused": BAD,
    # verdicts
    "PASS": GOOD,
    LATE_PASS: CAUTION,
    "FAIL": BAD,
    "INVALID": BAD,
    "CANNOT JUDGE": UNSURE,
    "NOT RIGHT": BAD,
    "right": GOOD,
    # checks
    "ok": GOOD,
    "wrong": BAD,
    "not verifiable": UNSURE,
    "equal": GOOD,
    "different": BAD,
    "effect verified": GOOD,
    "no effect seen": Sign("✗", "warning"),
    "info": QUIET,
    # what is known of files
    "intact": Sign("✓", "muted"),
    "not sealed": QUIET,
    "changed": BAD,
    "missing": BAD,
    "unchecked": QUIET,
    "ledger broken": BAD,
    # figures that a source once gave
    "stale": Sign("~", "warning"),
    "none": NOTHING,
    # environments
    "built": GOOD,
    "unfinished": CAUTION,
    "broken": BAD,
}


def sign_of(word: str, other: Sign = UNSURE) -> Sign:
    """Return the sign of a state, a verdict or a finding; `other` for a word that is not known."""
    return SIGNS.get(word, other)
