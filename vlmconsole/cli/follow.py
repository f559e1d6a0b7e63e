"""Following a run in the terminal: progress bar, time left, the latest metrics, notes as they come."""

import time

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from vlmconsole.cli.common import hush
from vlmconsole.runs import pace
from vlmconsole.runs.events import EventTail
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.pace import Pace
from vlmconsole.text.counts import plain_name
from vlmconsole.text.numbers import number, percent
from vlmconsole.text.times import duration
from vlmconsole.text.units import in_unit

LINE_EVERY = 10.0  # seconds between two progress lines where there is no terminal


class _Left(ProgressColumn):
    """The time left, in words that cannot be taken for the time gone; nothing while it is not known."""

    def render(self, task: Task) -> Text:
        left = task.fields["left"]
        return Text("" if left is None else f"{duration(left)} left", style="cyan", no_wrap=True)


class _StderrConsole(Console):
    """On stderr; once nobody reads that, silent: rich would end the program, whose job is still to end."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        hush()


class Follower:
    """Reads a run's events and shows them on stderr: a live bar in a terminal, now and then a line elsewhere."""

    def __init__(self, run: RunFolder, title: str, quiet: bool = False) -> None:
        self.tail = EventTail(run.file("events.jsonl"))
        self.metrics: dict[str, str] = {}
        self.pace = Pace()
        self.console = _StderrConsole(stderr=True, quiet=quiet, highlight=False)
        self._live = self.console.is_terminal and not quiet
        self._said, self._line = 0.0, ""
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[share]}", markup=False),
            TextColumn("{task.fields[counted]}", markup=False),
            TimeElapsedColumn(),
            _Left(),
            TextColumn("{task.fields[metrics]}", markup=False),
            console=self.console,
            disable=not self._live,
            transient=True,
        )
        self._task = self._bar.add_task(title, total=None, metrics="", share="", counted="", left=None)
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
            if kind == "metric":
                name = plain_name(str(event.get("name")), str(event.get("unit") or ""))
                self.metrics[name] = _figure(event.get("value"), event.get("unit"))
            elif kind == "note":
                level = event.get("level", "info")
                self.say(f"{'' if level == 'info' else f'{level}: '}{event.get('text', '')}")
            else:
                self.pace.add(event)
        now = self.pace.now
        if self._live:
            share = now.share if now else None
            self._bar.update(
                self._task,
                completed=share or 0.0,
                total=None if share is None else 1.0,
                share="" if share is None else percent(share, 0),
                counted=now.counted() if now else "",
                left=now.left(time.time()) if now else None,
                metrics=self._metrics(),
                description=self.title,
            )
        elif now and time.monotonic() - self._said >= LINE_EVERY:
            self._said = time.monotonic()
            line = " · ".join(filter(None, [progress_line(now), self._metrics()]))
            if line != self._line:  # in a log the same words again tell nothing
                self._line = line
                self.say(line)

    def _metrics(self) -> str:
        return " · ".join(f"{name} {value}" for name, value in list(self.metrics.items())[-4:])


def progress_line(progress: pace.Progress) -> str:
    """How far a job is, in one plain line: the whole, its phase, what it does before the first of its units, the time
    left."""
    whole = percent(progress.overall, 0) if progress.overall is not None else ""
    ends = [progress.note if not progress.done else "", progress.left_said(time.time())]
    return " · ".join(filter(None, [whole, progress.counted(), *ends]))


def _figure(value: object, unit: object) -> str:
    known = number(value)
    return f"{value} {unit or ''}".rstrip() if known is None else in_unit(known, str(unit or ""))
