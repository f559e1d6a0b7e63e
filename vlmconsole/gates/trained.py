"""The training behind an evaluation: which run made the tested weights, when it began, and what was frozen by then."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.gates.evidence import FrozenWhen
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.system.typed_paths import named
from vlmconsole.text.numbers import number
from vlmconsole.text.signs import LATE_PASS
from vlmconsole.text.times import about

#: A PASS whose plan was frozen after the training began, as it stands in lists, heads and reports.


@dataclass(frozen=True)
class Freezing:
    """When a plan was frozen (wall seconds) against the first step of the training that it judges.

    `limits` is when its limits were first frozen, without pictures, where that was earlier.
    """

    training: str  # the run's name
    frozen: float
    began: float
    limits: float | None = None

    @property
    def late(self) -> bool:
        """Whether the training could have been made with the plan's pictures in sight."""
        return self.frozen >= self.began

    @property
    def text(self) -> str:
        """`frozen 12 min before the first training step of …`."""
        between = about(abs(self.began - self.frozen))
        if not self.late:
            return f"frozen {between} before the first training step of {self.training}"
        text = f"frozen {between} after the first training step of {self.training}, not before it"
        if self.limits is not None and self.limits < self.began:
            text += f" (its limits alone {about(self.began - self.limits)} before)"
        return text

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"training": self.training, "began": self.began, "late": self.late, "text": self.text}


def freezing(run: RunFolder, places: Places, frozen: float | None, limits: float | None = None) -> Freezing | None:
    """Return how the freezing of an evaluation's plan stands to its training; None where either is not known."""
    trained = training_of(run, places) if frozen is not None else None
    began = first_step(trained) if trained is not None else None
    if frozen is None or trained is None or began is None:
        return None
    return Freezing(trained.name, frozen, began, limits)


def freezing_of(run: RunFolder, places: Places, frozen: FrozenWhen | None) -> Freezing | None:
    """Return the same for a run that was judged."""
    return freezing(run, places, frozen.t, frozen.limits) if frozen is not None else None


def standing(run: RunFolder, verdict: str) -> str:
    """Label a run's verdict as its own files give it: :data:`LATE_PASS` for a PASS by a plan that was frozen late."""
    if verdict != "PASS":
        return verdict
    kept = run.read_json("verdict.json", {})
    frozen = kept.get("frozen") if isinstance(kept, dict) else None
    freezing_known = freezing(run, Places(run.path.parent.parent), number(frozen))
    return LATE_PASS if freezing_known is not None and freezing_known.late else verdict


def training_of(run: RunFolder, places: Places) -> RunFolder | None:
    """Return the run that made the evaluated weights, by the adapter's own account or by where it lies; None: not
    here.
    """
    spec = run.job().get("spec")
    spec = spec if isinstance(spec, dict) else {}
    adapter, whole = (str(spec.get(key) or "") for key in ("after_adapter", "after_model"))
    folder = evaluated_adapter(run, "after", places) if adapter else named(whole) if whole else None
    if folder is None:
        return None
    origin = RunFolder(folder).read_json("provenance.json")
    name = str(origin.get("run") or "") if isinstance(origin, dict) else ""
    for path in (folder.parent, *([places.runs / name] if name else [])):
        if (path / "selection.json").exists() or (path / "training.jsonl").exists():
            return RunFolder(path)
    return None


def evaluated_adapter(run: RunFolder, side: str, places: Places) -> Path | None:
    """Return the folder of the adapter that answered a side: as its conditions name it, else as its settings do.

    A name that was asked for may mean another adapter by now. None when it is not here, or the side has none.
    """
    from vlmconsole.training.adapters.store import exact_adapter

    spec, conditions = run.job().get("spec"), run.read_json("conditions.json")
    asked = str(spec.get(f"{side}_adapter") or "") if isinstance(spec, dict) else ""
    if not asked:
        return None
    by_path = "/" in asked and exact_adapter(places, asked) is None
    of_side = conditions.get(side) if isinstance(conditions, dict) else None
    recorded = str(of_side.get("adapter") or "") if isinstance(of_side, dict) else ""
    exact = exact_adapter(places, recorded.partition(" sha256:")[0]) if not by_path else None
    return exact or adapter_folder(places, asked)


def adapter_folder(places: Places, name: str) -> Path | None:
    """Return the folder of an adapter by name or path; None when it is not here, or is none."""
    from vlmconsole.training.adapters.store import find_adapter

    try:
        return find_adapter(places, name).path
    except LabError:
        return None


def earlier_attempts(run: RunFolder) -> list[RunFolder]:
    """Return the attempts that this run went on from, the latest first: their finished epochs were copied as they
    were.
    """
    attempts: list[RunFolder] = []
    earlier = run.job().get("earlier")
    while earlier and Path(earlier).name not in [attempt.name for attempt in attempts]:
        attempts.append(RunFolder(Path(earlier)))
        earlier = attempts[-1].job().get("earlier")
    return attempts


def first_step(run: RunFolder) -> float | None:
    """Wall seconds of a training's first step, in its first attempt; None while it made none."""
    times = []
    for attempt in (run, *earlier_attempts(run)):
        first = next((e.get("t") for e in attempt.read_jsonl("events.jsonl") if e.get("kind") == "metric"), None)
        if isinstance(first, (int, float)):
            times.append(float(first))
    return min(times, default=None)
