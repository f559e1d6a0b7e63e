"""What models answered to a dataset's examples: evaluations' samples, and the development answers of trainings.

Read from the run folders, newest run first, and read again only where a file moved. Nothing is scored here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from vlmconsole.runs.folder import RunFolder, list_runs
from vlmconsole.runs.places import Places
from vlmconsole.system.file_system import file_stamp

MOST = 12  # newest sources read for a dataset; the older ones are counted
SIDES = ("before", "after", "diagnostic")
SELECTION = "selection.json"
DEVELOPMENT = "dev-epoch*.jsonl"


@dataclass(frozen=True)
class Prediction:
    """One answer to one example. `answer` is None where the request failed; `right` is None where nothing scored it."""

    answer: str | None
    right: bool | None
    valid: bool
    score: float | None
    reason: str = ""
    seconds: float | None = None
    image_sha256: str = ""

    @property
    def failed(self) -> bool:
        """Whether no answer came."""
        return self.answer is None

    @property
    def wrong(self) -> bool:
        """Whether an answer came and was scored as not right."""
        return not self.failed and self.right is False


@dataclass(frozen=True)
class PredictionSource:
    """All answers of one side of an evaluation, or of one development pass, by (split, example id).

    `digest` is that of the dataset's generation that was asked, "" where the run does not tell (yet).
    """

    run: str
    preset: str
    side: str
    model: str
    digest: str = ""
    predictions: Mapping[tuple[str, str], Prediction] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """`RUN:SIDE`, by which a filter chooses it."""
        return f"{self.run}:{self.side}"

    def of(self, split: str, example: str) -> Prediction | None:
        """Return the answer to an example; None where it was not asked."""
        return self.predictions.get((split, example)) or self.predictions.get(("", example))


@dataclass(frozen=True)
class Predictions:
    """The sources of one dataset, newest run first, each run's sides in order.

    `older` counts sources that were left out by MOST, `earlier` those that asked an earlier generation.
    """

    sources: tuple[PredictionSource, ...] = ()
    older: int = 0
    earlier: int = 0

    def of(self, split: str, example: str) -> list[tuple[PredictionSource, Prediction]]:
        """Return every answer to an example."""
        answered = ((source, source.of(split, example)) for source in self.sources)
        return [(source, prediction) for source, prediction in answered if prediction is not None]


@dataclass(frozen=True)
class _RunData:
    """The datasets that a run's settings name, and the digest of each generation as far as the run tells it."""

    names: frozenset[str]
    digests: Mapping[str, str]


class PredictionReader:
    """Reads the runs of one lab home. Use it from one thread at a time."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._data: dict[str, tuple[Any, _RunData]] = {}
        self._read: dict[tuple[str, str], tuple[Any, PredictionSource]] = {}
        self._last: dict[tuple[str, str], tuple[Any, Predictions]] = {}

    def runs(self) -> list[tuple[RunFolder, Mapping[str, str]]]:
        """Return every run, newest first, with the datasets that it names; the digest of each, "" where it does not
        tell.
        """
        listed: list[tuple[RunFolder, Mapping[str, str]]] = []
        for run in list_runs(self._places.runs):
            stamp = tuple(file_stamp(run.file(name)) for name in ("job.json", "summary.json", SELECTION))
            if run.name not in self._data or self._data[run.name][0] != stamp:
                self._data[run.name] = (stamp, _run_data(run))
            data = self._data[run.name][1]
            listed.append((run, {name: data.digests.get(name, "") for name in data.names}))
        return listed

    def of(self, dataset: str, digest: str) -> Predictions:
        """Return what was answered to the generation `digest` (hex) of a dataset. The same object while nothing
        moved.
        """
        asked = [(run, data[dataset]) for run, data in self.runs() if dataset in data]
        files = [(run, path.name, file_stamp(path), told) for run, told in asked for path in _files(run)]
        stamp = tuple((run.name, name, moved, told) for run, name, moved, told in files)
        last = self._last.get((dataset, digest))
        if last is not None and last[0] == stamp:
            return last[1]
        sources: list[PredictionSource] = []
        older = earlier = 0
        for run, name, moved, told in files:
            if told and told != digest:
                earlier += 1
            elif len(sources) >= MOST:
                older += 1
            elif (source := self._source(run, name, (moved, told), dataset)).predictions:
                sources.append(source)
        predictions = Predictions(tuple(sources), older, earlier)
        self._last[dataset, digest] = (stamp, predictions)
        return predictions

    def _source(self, run: RunFolder, name: str, stamp: tuple[Any, str], dataset: str) -> PredictionSource:
        key = (f"{run.name}/{name}", dataset)
        if key not in self._read or self._read[key][0] != stamp:
            self._read[key] = (stamp, read_source(run, name, dataset, stamp[1]))
        return self._read[key][1]


def read_source(run: RunFolder, name: str, dataset: str, digest: str = "") -> PredictionSource:
    """Return the answers in a run's file `name` to a dataset's examples; torn lines and those of other datasets are
    left out.

    The last line of an example counts.
    """
    side = name.removesuffix(".jsonl")
    development = side not in SIDES
    predictions: dict[tuple[str, str], Prediction] = {}
    for line in run.read_jsonl(name):
        if not isinstance(line.get("id"), str) or plain_name(str(line.get("dataset") or dataset)) != dataset:
            continue
        split = line.get("group" if development else "split")
        predictions[split if isinstance(split, str) else "", line["id"]] = _prediction(line)
    job = run.job()
    preset = str(job.get("preset") or run.name)
    side_name = side.replace("dev-epoch", "dev, epoch ")
    return PredictionSource(run.name, preset, side_name, _model(run, side), digest, predictions)


def _prediction(line: Mapping[str, Any]) -> Prediction:
    answer = line.get("answer")
    scored = line.get("scorer") != ""
    score = line.get("score", line.get("partial"))
    seconds = line.get("seconds")
    return Prediction(
        answer=answer if isinstance(answer, str) else None,
        right=line.get("all_correct") is True if scored else None,
        valid=line.get("valid") is True or not scored,
        score=float(score) if scored and isinstance(score, int | float) else None,
        reason=str(line.get("error") or line.get("reason") or ""),
        seconds=float(seconds) if isinstance(seconds, int | float) else None,
        image_sha256=str(line.get("picture_sha256") or ""),
    )


def _files(run: RunFolder) -> Iterator[Any]:
    """A run's files of answers: the sides of an evaluation in order, the last development pass of a training."""
    yield from (run.file(f"{side}.jsonl") for side in SIDES if run.file(f"{side}.jsonl").is_file())
    passes = sorted(run.path.glob(DEVELOPMENT), key=lambda path: (len(path.name), path.name))
    yield from passes[-1:]


def _model(run: RunFolder, side: str) -> str:
    """Who answered, as the summary names it: the adapter, else the model; "" while it does not."""
    summary = run.read_json("summary.json", {})
    who = summary.get("after" if side == "diagnostic" else side) if isinstance(summary, dict) else None
    if not isinstance(who, dict):
        return ""
    return str(who.get("adapter") or who.get("model") or "")


def _run_data(run: RunFolder) -> _RunData:
    named = frozenset(plain_name(text.partition(":")[0]) for text in _texts(run.job().get("spec")))
    digests: dict[str, str] = {}
    summary, rule = run.read_json("summary.json", {}), run.read_json(SELECTION, {})
    told = summary.get("data") if isinstance(summary, dict) else None
    if isinstance(told, dict):
        digests |= {plain_name(str(name)): value for name, value in told.items() if isinstance(value, str)}
    if isinstance(rule, dict) and isinstance(rule.get("dataset_sha256"), str):
        digests.setdefault(plain_name(str(rule.get("dataset"))), rule["dataset_sha256"])
    return _RunData(named | digests.keys(), digests)


def plain_name(dataset: str) -> str:
    """Return a dataset's name without the digest that an earlier generation carries."""
    return dataset.partition("@")[0]


def _texts(value: Any) -> Iterator[str]:
    """Every text in settings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)
