"""Examples with every model's answer to them, as CSV (a line an example) and as one HTML page with thumbnails."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmconsole import __version__
from vlmconsole.data.example import Example, truth_text
from vlmconsole.errors import LabError
from vlmconsole.evaluation.example_query import Answered
from vlmconsole.evaluation.notes import ReadingNote
from vlmconsole.evaluation.predictions import Prediction, PredictionSource
from vlmconsole.reports.flat import tame
from vlmconsole.reports.pages import page_template
from vlmconsole.runs.folder import folder_for_user, write_for_user
from vlmconsole.runs.places import Places
from vlmconsole.system.typed_paths import new_file
from vlmconsole.text.plain import inert, one_line

FORMS = ("csv", "html")


@dataclass(frozen=True)
class ExportedExample:
    """One example with the answers that count and its notes. `thumbnail` gives a small JPEG, None where it has none."""

    example: Example
    answered: Answered
    notes: Sequence[ReadingNote] = ()
    thumbnail: Callable[[], bytes | None] = lambda: None


def as_csv(dataset: str, examples: Sequence[ExportedExample]) -> str:
    """Return a line for each example; of each source that answered any of them answer, right, score and validity.

    A text that a spreadsheet would run as a formula gets an apostrophe before it; control characters are left out.
    """
    sources = sources_of(examples)
    columns = ["dataset", "split", "id", "group", "question", "truth", "scorer"]
    columns += [f"{name} {what}" for name in sources for what in ("answer", "right", "score", "valid")]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([tame(column) for column in (*columns, "notes")])
    for exported in examples:
        example = exported.example
        row: list[Any] = [
            dataset,
            example.split,
            example.id,
            example.group,
            example.question,
            _truth(example),
            example.scorer,
        ]
        answers = {source.name: prediction for source, prediction in exported.answered}
        for name in sources:
            row += _cells(answers.get(name))
        row.append("; ".join(f"{note.tag}: {note.text}" if note.text else note.tag for note in exported.notes))
        writer.writerow([tame(value) for value in row])
    return out.getvalue()


def as_html(dataset: str, examples: Sequence[ExportedExample], chosen_by: str = "", now: float | None = None) -> str:
    """Return one page without scripts and without anything from the network. `chosen_by` is the filter that left them.

    now: wall time, seconds. Raises LabError when the extra for reports is not installed.
    """
    page: str = page_template("examples.html").render(
        title=f"{one_line(dataset, 120)}: {len(examples)} example{'s' * (len(examples) != 1)}",
        chosen_by=inert(chosen_by),
        made=time.strftime("%-d %B %Y, %H:%M %Z", time.localtime(now)),
        version=__version__,
        sources=[one_line(name, 200) for name in sources_of(examples)],
        examples=_figures(examples),
    )
    return page.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate of a file name is no UTF-8


def save_examples(
    dataset: str,
    examples: Sequence[ExportedExample],
    form: str,
    places: Places,
    path: Path | None = None,
    chosen_by: str = "",
) -> Path:
    """Write them as `form` (one of FORMS) to `path`, by default into the lab's `reports` folder; the path.

    Raises LabError when it cannot be written or the extra for reports is missing.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{dataset}-{chosen_by}" if chosen_by else dataset).strip("-.")[:80]
    path = new_file(path) if path else places.home / "reports" / f"{name}.{form}"
    text = as_csv(dataset, examples) if form == "csv" else as_html(dataset, examples, chosen_by)
    try:
        folder_for_user(path.parent)
        write_for_user(path, text.encode("utf-8", "replace"))
    except OSError as error:
        raise LabError(
            f"{path} cannot be written: {error.strerror}.", "Name another file or make room.", code="file-unwritable"
        ) from None
    return path


def sources_of(examples: Sequence[ExportedExample]) -> list[str]:
    """Return who answered any of them, as `RUN:SIDE`."""
    return list(dict.fromkeys(source.name for exported in examples for source, _ in exported.answered))


def _cells(prediction: Prediction | None) -> list[Any]:
    if prediction is None:
        return ["", "", "", ""]
    score = "" if prediction.score is None else round(prediction.score, 6)
    right = "" if prediction.right is None else prediction.right
    return [
        prediction.answer if prediction.answer is not None else f"(failed) {prediction.reason}",
        right,
        score,
        prediction.valid,
    ]


def _truth(example: Example) -> str:
    return "" if example.truth is None else truth_text(example.truth)


def _figures(examples: Sequence[ExportedExample]) -> Iterator[dict[str, Any]]:
    """What the page shows of each, one at a time: thousands of thumbnails are never in memory together."""
    for exported in examples:
        example, image = exported.example, exported.thumbnail()
        yield {
            "id": one_line(example.id, 200),
            "split": " · ".join(inert(part) for part in dict.fromkeys((example.split, example.group)) if part),
            "image": f"data:image/jpeg;base64,{base64.b64encode(image).decode('ascii')}" if image else "",
            "question": inert(example.question),
            "truth": inert(_truth(example)) or "–",
            "options": inert(json.dumps(dict(example.options), ensure_ascii=False)) if example.options else "",
            "answers": [_answer(source, prediction) for source, prediction in exported.answered],
            "notes": [inert(f"{note.tag}: {note.text}" if note.text else note.tag) for note in exported.notes],
        }


def _answer(source: PredictionSource, prediction: Prediction) -> dict[str, Any]:
    failed, right = prediction.failed, prediction.right
    word = (
        "failed"
        if failed
        else ""
        if right is None
        else "right"
        if right
        else "wrong"
        if prediction.valid
        else "invalid"
    )
    return {
        "source": one_line(source.name, 200),
        "model": one_line(source.model or source.preset, 200),
        "word": word,
        "score": "" if prediction.score is None or prediction.score in (0, 1) else f"{prediction.score:.3g}",
        "text": inert(prediction.reason if failed else prediction.answer or "(empty)"),
    }
