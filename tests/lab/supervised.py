"""A supervisor in the test's own process, ticked by hand, with real workers under it."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from folders import HELPERS

from vlmconsole.devices.locks import DeviceLocks
from vlmconsole.gauges.nvidia import CardsReading, GpuCard
from vlmconsole.queue import process
from vlmconsole.queue.model import FINAL, NewJob
from vlmconsole.queue.resources import Machine
from vlmconsole.queue.supervisor import Supervisor
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places


@pytest.fixture(name="places")
def places_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    monkeypatch.syspath_prepend(str(HELPERS))
    monkeypatch.setenv("PYTHONPATH", str(HELPERS))
    monkeypatch.setenv(process.LOCKS_VARIABLE, str(tmp_path / "devices"))
    monkeypatch.setenv(process.SLOTS_VARIABLE, "2")
    monkeypatch.setenv(process.IDLE_VARIABLE, "0.5")
    return Places(tmp_path / "home").ensure()


class Lab:
    """A supervisor in this very process, ticked by hand; `crash` forgets it as kill -9 would."""

    def __init__(self, places: Places, cards: tuple[GpuCard, ...] = ()) -> None:
        self.places, self.cards = places, cards
        self.locks = DeviceLocks(places.home.parent / "devices")
        self.now = 0.0
        self.crash()

    def crash(self) -> None:
        machine = Machine(self.locks, 2, lambda: CardsReading(self.cards))
        self.supervisor = Supervisor(self.places, machine, clock=lambda: time.monotonic() + self.now)
        self.store = self.supervisor.store

    def add(self, options: dict[str, Any] | None = None, **more: Any) -> int:
        known = {key: more.pop(key) for key in list(more) if key in NewJob.__dataclass_fields__}
        kind = known.pop("kind", "job_kinds:COUNT")
        return self.store.add(NewJob("count", kind, "Counts", more, options or {}, **known))

    def until(self, ready: Callable[[], Any], seconds: float = 100) -> Any:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.supervisor.tick()
            if value := ready():
                return value
            time.sleep(0.02)
        states = [(job.id, job.state, job.reason) for job in self.store.listing(True)]
        raise AssertionError(f"not within {seconds} s: {states}")

    def ends(self, *numbers: int) -> list[str]:
        self.until(lambda: all(self.store.get(number).state in FINAL for number in numbers))
        return [self.store.get(number).state for number in numbers]

    def run(self, number: int) -> RunFolder:
        return RunFolder(Path(self.store.get(number).run or ""))

    def at_step(self, number: int, step: int = 1) -> RunFolder:
        def there() -> bool:
            job = self.store.get(number)
            return job.state == "running" and any(
                row["step"] >= step for row in RunFolder(Path(job.run or "")).read_jsonl("samples.jsonl")
            )

        self.until(there)
        return self.run(number)


@pytest.fixture(name="lab")
def lab_fixture(places: Places) -> Iterator[Lab]:
    made = Lab(places)
    yield made
    for live in made.supervisor.live.values():
        live.worker.kill()


LONG = {"steps": 2000, "seconds": 0.02}
