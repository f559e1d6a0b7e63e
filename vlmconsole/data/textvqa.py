"""TextVQA from its public Parquet shards: the 64 pictures of the paired evaluation, chosen before any answer.

The rule is frozen with the data: different pictures by ascending SHA-256 of their file bytes, of each the question with
the lowest `question_id`. Only picture and question reach the prompt; the ten human answers are truth.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmconsole.data.dataset import MANIFEST, read_manifest
from vlmconsole.data.findings import Finding, finding
from vlmconsole.data.maker_lock import alone
from vlmconsole.data.rows import DataError, Row, read_rows, write_rows
from vlmconsole.data.splits import Known, PictureIndex
from vlmconsole.runs.conditions import canonical_json
from vlmconsole.runs.folder import to_json, write_atomic
from vlmconsole.scoring.scorers import ScoringError, read_truth
from vlmconsole.scoring.textvqa import ANNOTATORS
from vlmconsole.system.atomic_folder import making
from vlmconsole.vision.images import PictureError, open_picture

NAME = "textvqa64"
PICTURES = 64
RULE = "different pictures by ascending SHA-256 of the file bytes; of each the question with the lowest question_id"
SOURCE = "textvqa/textvqa"
_COLUMNS = ("image", "image_id", "question_id", "question", "answers")


@dataclass(frozen=True)
class TextVqaQuestion:
    """One row of a shard. `question_id` as a whole number; `answers` are the human ones, in their order."""

    picture: bytes
    image_id: str
    question_id: int
    question: str
    answers: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """Hash (hex) of the picture's file bytes."""
        return hashlib.sha256(self.picture).hexdigest()


def shards(place: Path) -> list[Path]:
    """Return the Parquet files meant by a file or a folder, by name. Raises DataError when there are none."""
    files = [place] if place.is_file() else sorted(place.glob("*.parquet"))
    if not files:
        raise DataError(f"{place} holds no Parquet shard.", "Give the folder of the TextVQA validation shards.")
    return files


def read_shard(path: Path) -> Iterator[TextVqaQuestion]:
    """Yield the rows of one shard. Raises DataError naming the row and what it lacks."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with path.open("rb") as opened, pq.ParquetFile(opened) as file:
            missing = [name for name in _COLUMNS if name not in file.schema_arrow.names]
            if missing:
                raise DataError(f"{path.name} is no TextVQA shard: it has no column {', '.join(missing)}.")
            for batch in file.iter_batches(batch_size=32, columns=list(_COLUMNS)):
                for value in batch.to_pylist():
                    number += 1
                    yield _question(value, f"{path.name} row {number}")
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:  # a text column may hold bytes that are none
        raise DataError(
            f"{path} cannot be read as Parquet after row {number}: {error}", code="parquet-invalid"
        ) from None


def _question(value: dict[str, Any], where: str) -> TextVqaQuestion:
    image, answers = value["image"], value["answers"]
    picture = image.get("bytes") if isinstance(image, dict) else None
    if not isinstance(picture, bytes) or not picture:
        raise DataError(f"{where}: the image has no bytes (only a path?)", "Shards must carry the images.")
    if not isinstance(answers, list) or len(answers) != ANNOTATORS or not all(isinstance(a, str) for a in answers):
        raise DataError(f"{where}: the official score needs {ANNOTATORS} human answers, as texts.")
    text, number = value["question"], value["question_id"]
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{where} has no question.")
    digits = str(number)
    if isinstance(number, bool) or not digits.isdecimal() or len(digits) > 20:
        raise DataError(f"{where}: question_id is {digits[:40]!r}, not a whole number.", code="id-invalid")
    return TextVqaQuestion(picture, str(value["image_id"]), int(number), text, tuple(answers))


def choose(questions: Iterator[TextVqaQuestion], n: int = PICTURES) -> list[TextVqaQuestion]:
    """Return the `n` questions of the rule, in its order. Only the `n` best pictures are kept in memory.

    Raises DataError when there are fewer pictures.
    """
    best: dict[str, TextVqaQuestion] = {}
    for question in questions:
        sha = question.sha256
        known = best.get(sha)
        if known is not None:
            if question.question_id < known.question_id:
                best[sha] = question
            continue
        best[sha] = question
        if len(best) > n:
            del best[max(best)]
    if len(best) < n:
        raise DataError(f"The shards hold {len(best)} different images; {n} are needed.")
    return [best[sha] for sha in sorted(best)]


def make_textvqa(
    place: Path, datasets: Path, *, n: int = PICTURES, say: Callable[[str], None] = lambda _: None
) -> Path:
    """Make the dataset `textvqa64` (one test split of that name) from shards, and return its folder.

    The same shards again change nothing; other shards under the same name are refused (DataError). Raises LeakError
    when one of its pictures belongs to another dataset of the lab.
    """
    with alone(datasets):
        return _make(place, datasets, n, say)


def _make(place: Path, datasets: Path, n: int, say: Callable[[str], None]) -> Path:
    files = shards(place)
    say(f"reading {len(files)} shards of {place}")
    chosen = choose((question for path in files for question in read_shard(path)), n)
    rows = [_row(question, index) for index, question in enumerate(chosen)]
    recipe = {
        "name": NAME,
        "title": f"TextVQA: {n} pictures, one question each",
        "rule": RULE,
        "n": n,
        "chosen": [[question.sha256, question.question_id] for question in chosen],
    }
    folder, sha = datasets / NAME, hashlib.sha256(canonical_json(recipe)).hexdigest()
    if folder.exists():
        if read_manifest(folder).get("recipe_sha256") == sha:
            return folder
        raise DataError(f"{folder} was made from other shards.", "Made datasets are never overwritten: move it away.")
    pixels = [row.pixel_sha256 for row in rows]
    known = [
        Known(row.sha256, pixel, NAME, sha, NAME, "test", row.uid) for row, pixel in zip(rows, pixels, strict=True)
    ]
    with making(folder) as building:
        names = (f"{NAME}.parquet", f"{NAME}.objects.jsonl")
        write_rows(building / names[0], rows)
        facts = (
            {"uid": row.uid, "group": NAME, "image_id": question.image_id, "question_id": question.question_id}
            for row, question in zip(rows, chosen, strict=True)
        )
        write_atomic(building / names[1], "".join(json.dumps(fact) + "\n" for fact in facts))
        pictures = [[row.uid, row.sha256, pixel, None] for row, pixel in zip(rows, pixels, strict=True)]
        manifest = {
            "name": NAME,
            "recipe": recipe,
            "recipe_sha256": sha,
            "seed": None,
            "made": round(time.time(), 3),
            "redrawn": 0,
            "sources": {},
            "shards": [path.name for path in files],
            "files": {name: _file(building / name) for name in names},
            "splits": {NAME: {"role": "test", "n": len(rows), "replayed": 0, "pictures": pictures}},
        }
        with PictureIndex(datasets).adding(known):
            write_atomic(building / MANIFEST, to_json(manifest))
            building.rename(folder)
    return folder


def textvqa_findings(folder: Path, manifest: dict[str, Any], datasets: Path) -> list[Finding]:
    """Return what can be checked of `textvqa64` without its shards: files, hashes, order of choice, truth, isolation.

    Whether no shard holds a lower hash, and whether the human answers are right, cannot be.
    """
    path = folder / f"{NAME}.parquet"
    files = [name for name, was in manifest["files"].items() if _file(folder / name) != was]
    rows = list(read_rows(path))
    listed = [tuple(entry[:3]) for entry in manifest["splits"][NAME]["pictures"]]
    changed = [r.uid for r, was in zip(rows, listed, strict=False) if (r.uid, r.sha256, r.pixel_sha256) != was]
    hashes = [row.sha256 for row in rows]
    chosen = [[row.sha256, int(row.uid.rpartition("-")[2])] for row in rows]
    rule = chosen == manifest["recipe"]["chosen"] and hashes == sorted(set(hashes)) and len(rows) == len(listed)
    index = PictureIndex(datasets)
    places = [known.place for h in hashes for known in index.find([h]) if known.dataset != manifest["name"]]
    unknown = [row.uid for row in rows if not index.find([row.sha256])]
    return [
        finding("hashes", f"{len(rows)} images: file bytes and pixels as in the manifest", files + changed),
        finding("choice", RULE, [] if rule else ["the rows are not the chosen ones in the rule's order"]),
        finding("truth", f"{len(rows)} questions with {ANNOTATORS} human answers each", _faults(rows)),
        finding("isolation", "every image is in the lab's index, and in no other dataset", places + unknown),
        Finding("labels", "not verifiable", "the answers are people's; nothing here can check them"),
    ]


def _faults(rows: list[Row]) -> list[str]:
    wrong = []
    for row in rows:
        try:
            answers = read_truth("textvqa", row.truth)
        except ScoringError:
            answers = ()
        if len(answers) != ANNOTATORS:
            wrong.append(row.uid)
    return wrong


def _row(question: TextVqaQuestion, index: int) -> Row:
    uid = f"{NAME}-{index:02d}-{question.question_id}"
    try:
        open_picture(question.picture, name=uid)
    except PictureError as error:
        raise DataError(f"{uid}: {error}") from None
    truth = json.dumps(list(question.answers), ensure_ascii=False)
    return Row(uid, question.picture, question.question, truth, SOURCE, "textvqa", NAME, index)


def _file(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
