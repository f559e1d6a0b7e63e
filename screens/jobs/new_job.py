"""A new job: choose a preset, fill in its form, see the plan, queue it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from textual.app import App

from vlmconsole.desks import forms
from vlmconsole.desks.queue import QueueBoard
from vlmconsole.errors import LabError
from vlmconsole.queue.adding import Planned
from vlmconsole.queue.model import Mode
from vlmconsole.runs.places import Places
from vlmconsole.screens.jobs.form import JobForm
from vlmconsole.screens.jobs.sheets import PlanSheet, PresetList
from vlmconsole.screens.keys import with_keys
from vlmconsole.text.counts import many

#: Numbers of the jobs that are waited for, and whether for a good end or for any.
Waits = list[tuple[int, Mode]]
#: Queues what was planned; False when it could not, which was said.
Queue = Callable[[Sequence[Planned], Waits, int | None], Awaitable[bool]]


def ahead(board: QueueBoard) -> str:
    """Return what a job that is queued now waits for."""
    waiting = board.count("queued")
    if board.drained:
        return with_keys("queue paused · {jobs.drain} resumes it")
    return f"{many(waiting, 'job')} ahead" if waiting else "starts now"


async def new_job(app: App[Any], places: Places, place: Callable[[], str], queue: Queue) -> None:
    """Ask for everything, until it is queued or given up. `place` says what the job would wait for, as it is then."""
    entries, wrong = await asyncio.to_thread(forms.catalogue, places)
    name = await app.push_screen_wait(PresetList(entries, wrong))
    if name is None:
        return
    title = next(entry.title for entry in entries if entry.name == name)
    try:
        groups = await asyncio.to_thread(forms.form, name, places)
    except LabError as error:
        app.notify(error.full_message, severity="error", markup=False)
        return
    sheet = JobForm(name, title, groups, places)
    while (filled := await app.push_screen_wait(sheet)) is not None:
        changes, after, priority = filled
        height = int(priority) if priority else None
        others = after.replace(",", " ").split()
        try:
            planned = await asyncio.to_thread(forms.planned, name, changes, places)
        except LabError as error:
            app.notify(error.full_message, severity="error", markup=False)
        else:
            plan = PlanSheet(planned, forms.twin(name, changes, others, height), place())
            if await app.push_screen_wait(plan) and await queue(planned, _waits(others), height):
                return
        sheet = JobForm(name, title, groups, places, sheet.kept)


def _waits(others: Sequence[str]) -> Waits:
    return [(int(part.partition(":")[0]), "any" if part.endswith(":any") else "ok") for part in others]
