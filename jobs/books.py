"""Closing the books of a run: its final state, then the seal. Done by the worker, or by whoever finds it dead."""

import signal
import time
from pathlib import Path

from vlmconsole.gates.ledger import Ledger
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places


def close(run: RunFolder, state: str, reason: str | None) -> None:
    """Write the final state and seal the run into its lab's ledger; nothing may write to it afterwards."""
    run.set_state(state, reason, ended=round(time.time(), 3))
    Ledger(Places(Path(run.job()["home"])).ledger).seal(run)


def death(code: int) -> str:
    """What a worker's exit status means that ended without saying why; negative is a signal's number."""
    if code < 0:
        name = signal.Signals(-code).name
        more = ", perhaps for lack of memory" if name == "SIGKILL" else ""
        return f"the worker was ended by {name}{more}"
    return f"the worker ended with exit code {code} before it could say why"
