"""A lab home with the `story` preset, jobs that really ran in it, and a queue that nobody works on."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from folders import HELPERS

from vlmconsole.desks import forms
from vlmconsole.devices.locks import DeviceLocks
from vlmconsole.queue.adding import add
from vlmconsole.queue.resources import Machine
from vlmconsole.queue.store import Store
from vlmconsole.queue.supervisor import Supervisor
from vlmconsole.runs.places import Places

STORY = """
kind = "story_kind:STORY"
title = "Tells a story"
notes = "For tests."
[spec]
steps = 40
pause = 0.0
"""


def lab(home: Path) -> Places:
    """A lab home with the preset, and with a server profile that is never there."""
    sys.path.insert(0, str(HELPERS)) if str(HELPERS) not in sys.path else None
    os.environ["PYTHONPATH"] = str(HELPERS)  # the workers find the kind there
    places = Places(home).ensure()
    (places.presets / "story.toml").write_text(STORY)
    (places.servers / "none.toml").write_text('engine = "openai"\nbase_url = "http://127.0.0.1:9"\nmodel = "none"\n')
    places.config.write_text('server = "none"\n')
    return places


@contextmanager
def held(places: Places) -> Iterator[None]:
    """While the supervisor's lock is held here, none is started and what is queued stays queued."""
    descriptor = os.open(places.state / "supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


def run_all(places: Places, *changes: list[str]) -> None:
    """Queue the story once for each of `changes`, and work until all have ended, in real workers."""
    store = Store(places.queue)
    for change in changes:
        add(store, forms.planned("story", change, places))
    store.close()
    supervisor = Supervisor(places, Machine(DeviceLocks(places.home / "locks"), 1))
    deadline = time.monotonic() + 120
    while not supervisor.idle():
        assert time.monotonic() < deadline
        supervisor.tick()
        time.sleep(0.02)
