"""A recording of the gauges: one batch a line, and its replay as if it were live."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from vlmconsole.errors import LabError
from vlmconsole.gauges.board import CONSOLE, Board, Snapshot
from vlmconsole.gauges.figures import Batch, Mark
from vlmconsole.runs.events import append_line, parse_line
from vlmconsole.text.sizes import size

LARGEST = 512 * 1024 * 1024  # bytes; a day of twelve figures has about 200 MB


class Recorder:
    """Appends batches to `path`, from any thread. A full disk ends the recording, never the gauges."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.why = ""  # why it ended, once it did
        self._lock = threading.Lock()
        self._size = path.stat().st_size if path.exists() else 0

    def __call__(self, batch: Batch) -> None:
        with self._lock:
            if self.why:
                return
            try:
                append_line(self.path, batch.to_json())
                self._size = self.path.stat().st_size
            except OSError as error:
                self.why = f"the recording ended: {error.strerror}"
            if self._size > LARGEST:
                self.why = f"the recording ended at {size(LARGEST)}"


def batches(path: Path) -> Iterator[Batch]:
    """Yield the batches of a recording, in order; torn or bad lines are left out. Raises LabError when it has none."""
    some = False
    if path.exists() and not path.is_file():  # a FIFO would be waited for
        raise LabError(f"the recording {path} cannot be read: not a regular file")
    try:
        with path.open("rb") as file:
            for line in file:
                value = parse_line(line) if line.strip() else None
                try:
                    batch = None if value is None else Batch.from_json(value)
                except (KeyError, TypeError, ValueError, AttributeError):
                    batch = None
                if batch is not None:
                    some = True
                    yield batch
    except OSError as error:
        raise LabError(f"the recording {path} cannot be read: {error.strerror}") from None
    if not some:
        raise LabError(f"{path} is not a gauges recording")


class Replay:
    """Plays a recording into a board of its own, at `speed` times its pace. Looks like live gauges to a screen.

    The board's clock is the recording's: ages and windows are what they were. Figures of a replay are not of now,
    so a screen says that it replays (:attr:`path`).
    """

    def __init__(self, path: Path, speed: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.path, self.speed = path, speed
        self.finished = False
        self._batches = batches(path)
        self._ahead: Batch | None = next(self._batches)
        self._first = self._ahead.at if self._ahead is not None else 0.0
        self._clock = clock
        self._begun = clock()
        self.board = Board(self.now)

    def now(self) -> float:
        """Wall-clock seconds in the recording."""
        return self._first + (self._clock() - self._begun) * self.speed

    def to_end(self) -> Snapshot:
        """Return everything as it was at the recording's last reading."""
        last = self._first
        while self._ahead is not None:
            self.board.take(self._ahead)
            last = max(last, self._ahead.at)
            self._ahead = next(self._batches, None)
        self._first, self.speed, self.finished = last, 0.0, True
        return self.board.snapshot()

    def start(self) -> Replay:
        self._begun = self._clock()
        return self

    def stop(self) -> None:
        """Nothing runs: the recording is read as far as each snapshot asks."""

    def mark(self, text: str) -> None:
        """A mark of the viewer's, now in the recording's time."""
        self.board.take(Batch(CONSOLE, self.now(), marks=(Mark(self.now(), text),)))

    def snapshot(self) -> Snapshot:
        """Return everything as it was at this moment of the recording."""
        now = self.now()
        while self._ahead is not None and self._ahead.at <= now:
            self.board.take(self._ahead)
            self._ahead = next(self._batches, None)
        self.finished = self._ahead is None
        return self.board.snapshot()
