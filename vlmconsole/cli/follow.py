"""Following a run in the terminal: progress bar, time left, the latest metrics, notes as they come."""

import time
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from vlmconsole.runs.events import EventTail
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.pace import duration

LINE_EVERY = 10.0  # seconds between two progress lines where there is no terminal


class _Left(ProgressColumn):
    """The time left, in words that cannot be taken for the time gone; nothing while it is not known."""

    def render(self, task: Task) -> Text:
        left = task.time_remaining
        return Text("" if left is None or not task.total else f"{duration(left)} left", style="cyan", no_wrap=True)


class Follower:
    """Reads a run's events and shows them on stderr: a live bar in a terminal, now and then a line elsewhere."""

    def __init__(self, run: RunFolder, title: str, quiet: bool = False) -> None:
        self.tail = EventTail(run.file("events.jsonl"))
        self.metrics: dict[str, str] = {}
        self.progress: dict[str, Any] = {}
        self.console = Console(stderr=True, quiet=quiet, highlight=False)
        self._live = self.console.is_terminal and not quiet
        self._said = 0.0
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            _Left(),
            TextColumn("{task.fields[metrics]}", markup=False),
            console=self.console,
            disable=not self._live,
            transient=True,
        )
        self._task = self._bar.add_task(title, total=None, metrics="")
        self.title = title

    def __enter__(self) -> "Follower":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def poll(self) -> None:
        """Take in what is new and show it."""
        for event in self.tail.read():
            kind = event.get("kind")
            if kind == "progress":
                self.progress = event
            elif kind == "metric":
                self.metrics[str(event.get("name"))] = _figure(event.get("value"), event.get("unit"))
            elif kind == "note":
                level = event.get("level", "info")
                self.say(f"{'' if level == 'info' else f'{level}: '}{event.get('text', '')}")
        if self._live:
            self._bar.update(
                self._task,
                completed=self.progress.get("done", 0),
                total=self.progress.get("total"),
                metrics=self._metrics(),
                description=self.title,
            )
        elif self.progress and time.monotonic() - self._said >= LINE_EVERY:
            self._said = time.monotonic()
            total = self.progress.get("total")
            of = f" of {total}" if total is not None else ""
            self.say(f"{self.progress['done']}{of} {self.progress.get('unit', '')} {self._metrics()}".rstrip())

    def _metrics(self) -> str:
        return "  ".join(f"{name} {value}" for name, value in list(self.metrics.items())[-4:])


def _figure(value: object, unit: object) -> str:
    """Four significant digits: a live line is for watching, the file holds the rest."""
    text = f"{value:.4g}" if isinstance(value, int | float) else str(value)
    return f"{text} {unit}" if unit else text
