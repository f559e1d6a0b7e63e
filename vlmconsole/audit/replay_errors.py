"""What a replay can come to, short of an answer."""

from __future__ import annotations

from vlmconsole.errors import LabError


class ReplayError(LabError):
    """The answer cannot be replayed here; says what is missing."""

    exit_status = 3
