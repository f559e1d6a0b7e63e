"""Examples: what bench, training, evaluation, chat and gates read of a dataset, and their Parquet form.

A split's file holds verl's columns beside our own, so that verl's dataset class reads it as it is; files of drawn
scenes (`data.rows`), which have verl's columns alone, are read as examples too.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from PIL import Image, UnidentifiedImageError

from vlmconsole.data.rows import IMAGE_TAG, DataError
from vlmconsole.models.messages import Message
from vlmconsole.text.counts import many
from vlmconsole.vision.images import Picture, PictureError, open_picture, pixel_sha256

Role = Literal["system", "user", "assistant"]
ROLES: tuple[Role, ...] = ("system", "user", "assistant")
#: task of a drawn scene's row (`vlmconsole/counting`) → its scorer
SCORER_OF_SOURCE = {"counting": "counting", "naming": "naming", "textvqa": "textvqa", "text": "naming"}
_BATCH = 128  # rows read or written at once
_BATCH_BYTES = 16 * 1024 * 1024  # of images written at once


@dataclass(frozen=True)
class ExampleTurn:
    """One turn; in `text` an IMAGE_TAG stands for each image, in order."""

    role: Role
    text: str

    @property
    def images(self) -> int:
        """How many images the turn shows."""
        return self.text.count(IMAGE_TAG)

    @property
    def words(self) -> str:
        """The text without its image tags, as it is sent."""
        return self.text.replace(IMAGE_TAG, "")

    @property
    def places(self) -> tuple[int, ...]:
        """Of each image the number of characters of `words` before it; () where all come before them."""
        *before, _ = accumulate(map(len, self.text.split(IMAGE_TAG)))
        return tuple(before) if any(before) else ()


@dataclass(frozen=True)
class Example:
    """One example. `id` is the user's own; `images` are the encoded bytes as they will be sent.

    `turns` end with the assistant's answer that is taught. `truth` is a JSON value (text, number, list of accepted
    answers, object), None where nothing is known; `scorer` ("": none) and its `options` say how the last answer is
    scored. `metadata` are further columns of the source, used by nothing.
    """

    id: str
    images: tuple[bytes, ...]
    turns: tuple[ExampleTurn, ...]
    truth: Any = None
    scorer: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""
    split: str = ""
    index: int = 0
    source: str = "own"
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def system(self) -> str | None:
        """The system turn that opens the conversation; None without one."""
        return self.turns[0].text if self.turns and self.turns[0].role == "system" else None

    @property
    def question(self) -> str:
        """The last user turn, without its image tags."""
        last = next((turn.text for turn in reversed(self.turns) if turn.role == "user"), "")
        return last.replace(IMAGE_TAG, "").strip()

    @property
    def target(self) -> str:
        """The last answer, as it is taught; "" where there is none."""
        return self.turns[-1].text if self.turns and self.turns[-1].role == "assistant" else ""

    @property
    def asked(self) -> tuple[ExampleTurn, ...]:
        """The turns up to the last question, without its answer."""
        last = max((at for at, turn in enumerate(self.turns) if turn.role == "user"), default=-1)
        return self.turns[: last + 1]

    @property
    def prompt(self) -> str:
        """The last question for people: its image tags are left out where they only say that one image comes first."""
        last = self.asked[-1] if self.asked else ExampleTurn("user", "")
        return last.text.removeprefix(IMAGE_TAG) if last.images == 1 else last.text

    def messages(self) -> list[Message]:
        """Return the conversation up to the last question, as it is sent. Raises DataError as `pictures`."""
        left = list(self.pictures())
        messages = []
        for turn in self.asked:
            shown, left = left[: turn.images], left[turn.images :]
            messages.append(Message(turn.role, turn.words, tuple(shown), turn.places))
        return messages

    def pictures(self) -> tuple[Picture, ...]:
        """Return the images opened, as they are sent. Raises DataError, naming the example, when one cannot be
        decoded.
        """
        try:
            several = len(self.images) > 1
            names = (f"{self.id} ({number})" if several else self.id for number in range(1, len(self.images) + 1))
            return tuple(open_picture(image, name=name) for image, name in zip(self.images, names, strict=True))
        except PictureError as error:
            raise DataError(f"An image of {self.id} cannot be used: {error}.", code=error.code) from None

    @property
    def image_sha256s(self) -> tuple[str, ...]:
        """Hash (hex) of each image's bytes."""
        return tuple(hashlib.sha256(image).hexdigest() for image in self.images)

    @property
    def pixel_sha256s(self) -> tuple[str, ...]:
        """Hash (hex) of each image's RGB pixels as they are in its file. Raises DataError, naming the example."""
        try:
            return tuple(pixel_sha256(Image.open(io.BytesIO(image))) for image in self.images)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            reason = "its bytes are no image" if isinstance(error, UnidentifiedImageError) else error
            raise DataError(f"An image of {self.id} cannot be decoded: {reason}.", code="image-invalid") from None

    def questions(self) -> Iterator[Example]:
        """Yield an example for each question asked, with what stands before it: all but the last are scored by the
        answer
        that is taught. The first keeps the id, the second is `ID#2`, the last of several has the example's truth.
        """
        asked = [at for at, turn in enumerate(self.turns) if turn.role == "user"]
        for number, at in enumerate(asked, start=1):
            turns = self.turns[: at + 2]
            shown = sum(turn.images for turn in turns)
            last = number == len(asked)
            answer = turns[-1].text if turns[-1].role == "assistant" else None
            yield replace(
                self,
                id=self.id if number == 1 else f"{self.id}#{number}",
                images=self.images[:shown],
                turns=turns,
                truth=self.truth if last else answer,
            )

    def check(self, images: int | None = None) -> None:
        """Raise DataError unless roles alternate from a user's turn on, and each image has its tag.

        `images`: how many it has, where it was read without them.
        """
        images = len(self.images) if images is None else images
        turns = self.turns[1:] if self.system is not None else self.turns
        wanted: tuple[Role, Role] = ("user", "assistant")
        if not turns or any(turn.role != wanted[at % 2] for at, turn in enumerate(turns)):
            raise DataError(f"{self.id}: user and assistant must take turns, the user first", code="turns-invalid")
        tags = sum(turn.images for turn in self.turns)
        if any(turn.images and turn.role != "user" for turn in self.turns):
            raise DataError(f"{self.id}: {IMAGE_TAG} outside of a user's turn", code="image-tags")
        if tags != images:
            raise DataError(f"{self.id}: {tags} {IMAGE_TAG} for {many(images, 'image')}", code="image-tags")

    def columns(self) -> dict[str, Any]:
        """Return the example as its Parquet row: verl's columns, then our own."""
        options = json.dumps(dict(self.options), ensure_ascii=False, sort_keys=True)
        return {
            "data_source": self.source,
            "prompt": [{"role": turn.role, "content": turn.text} for turn in self.asked],
            "images": [{"bytes": image, "path": None} for image in self.images],
            "ability": self.scorer,
            "reward_model": {"style": "rule", "ground_truth": truth_text(self.truth)},
            "extra_info": {
                **{"split": self.split, "index": self.index, "uid": self.id},
                **{"scorer": self.scorer, "options": options},  # what verl hands to a reward function
            },
            "turns": [{"role": turn.role, "content": turn.text} for turn in self.turns],
            "truth": json.dumps(self.truth, ensure_ascii=False),
            "scorer": self.scorer,
            "options": options,
            "group": self.group,
            "metadata": json.dumps(dict(self.metadata), ensure_ascii=False, sort_keys=True, default=str),
        }


def truth_text(truth: Any) -> str:
    """Return a truth as text (verl's `ground_truth`): text as it is, everything else as JSON."""
    return truth if isinstance(truth, str) else json.dumps(truth, ensure_ascii=False)


def example_schema() -> Any:
    """Return the Arrow schema of a split's Parquet file."""
    import pyarrow as pa

    text = pa.string()
    turns = pa.list_(pa.struct([("role", text), ("content", text)]))
    return pa.schema(
        [
            ("data_source", text),
            ("prompt", turns),
            ("images", pa.list_(pa.struct([("bytes", pa.binary()), ("path", text)]))),
            ("ability", text),
            ("reward_model", pa.struct([("style", text), ("ground_truth", text)])),
            (
                "extra_info",
                pa.struct([("split", text), ("index", pa.int64()), ("uid", text), ("scorer", text), ("options", text)]),
            ),
            ("turns", turns),
            *((name, text) for name in ("truth", "scorer", "options", "group", "metadata")),
        ]
    )


class ExampleWriter:
    """A split's Parquet file as it is written: a few rows in memory at a time, hashed on the way.

    Close it, or use it as a context; `n`, `size` (bytes) and `sha256` (hex) are whole afterwards.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self.n, self._bytes, self._rows = 0, 0, list[dict[str, Any]]()
        # An open file, here and below: pyarrow takes no path that is not UTF-8.
        self._file = _HashedFile(path)
        self._schema = example_schema()
        self._writer = pq.ParquetWriter(self._file, self._schema, compression="none", store_schema=True)

    def add(self, example: Example) -> None:
        """Write one more example."""
        self._rows.append(example.columns())
        self.n += 1
        self._bytes += sum(len(image) for image in example.images)
        if len(self._rows) == _BATCH or self._bytes >= _BATCH_BYTES:
            self._flush()

    @property
    def size(self) -> int:
        """Bytes written."""
        return self._file.size

    @property
    def sha256(self) -> str:
        """Hash (hex) of the bytes written."""
        return self._file.hash.hexdigest()

    def close(self) -> None:
        """Write what is left and the file's end."""
        self._flush()
        self._writer.close()
        self._file.close()

    def abandon(self) -> None:
        """Close the file as it is: it is not to be read."""
        self._file.abandon()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._schema))
            self._rows, self._bytes = [], 0

    def __enter__(self) -> ExampleWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close() if kind is None else self.abandon()


class _HashedFile(io.RawIOBase):
    """A file that is only appended to, and hashed as it grows."""

    def __init__(self, path: Path) -> None:
        self._under = path.open("wb")
        self.hash, self.size = hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Any) -> int:
        if self._under.closed:  # abandoned: Arrow still writes a footer when it is collected
            return len(data)
        written = self._under.write(data)
        self.hash.update(data)
        self.size += written
        return written

    def close(self) -> None:
        self._under.close()
        super().close()

    def abandon(self) -> None:
        """Close the file beneath; what is written from now on goes nowhere."""
        self._under.close()


def write_examples(path: Path, examples: Iterable[Example]) -> int:
    """Write a split's Parquet file, a few rows in memory at a time; return how many were written."""
    with ExampleWriter(path) as writer:
        for example in examples:
            writer.add(example)
    return writer.n


def read_examples(path: Path) -> Iterator[Example]:
    """Yield the examples of a split, of drawn scenes too, a few at a time. Raises DataError naming the row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path.open("rb"))
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}", code="parquet-invalid") from None
    number = 0
    try:
        for batch in file.iter_batches(batch_size=_BATCH):
            for value in batch.to_pylist():
                number += 1
                yield from_columns(value, f"{path.name} row {number}")
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} is damaged after row {number}: {error}", code="data-damaged") from None
    finally:
        file.close(force=True)


def read_questions(path: Path) -> Iterator[Example]:
    """Yield an example for each question of a split's examples. Raises DataError, naming what cannot be asked."""
    for example in read_examples(path):
        example.check()
        yield from example.questions()


@dataclass(frozen=True)
class ScoredTruth:
    """An example without its images and turns: what an answer to it is scored against."""

    id: str
    truth: Any
    scorer: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


def read_truths(path: Path) -> Iterator[ScoredTruth]:
    """Yield the truth of each example of a split, without its images. Raises DataError for a file that cannot be
    read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as opened, pq.ParquetFile(opened) as file:
            own = "truth" in file.schema_arrow.names
            columns = ("truth", "scorer", "options") if own else ("reward_model", "data_source")
            for batch in file.iter_batches(columns=["extra_info", *columns]):
                for value in batch.to_pylist():
                    uid = str(value["extra_info"]["uid"])
                    if own:
                        options = json.loads(value["options"])
                        yield ScoredTruth(uid, json.loads(value["truth"]), str(value["scorer"]), options)
                    else:
                        source = str(value["data_source"] or "").rpartition("/")[2]
                        truth = str(value["reward_model"]["ground_truth"])
                        yield ScoredTruth(uid, truth, SCORER_OF_SOURCE.get(source, ""))
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}", code="parquet-invalid") from None


def from_columns(value: Mapping[str, Any], where: str) -> Example:
    """Return an example from a Parquet row of either form. Raises DataError, naming `where`."""
    try:
        own = "turns" in value
        truth = json.loads(value["truth"]) if own else value["reward_model"]["ground_truth"]
        turns = [ExampleTurn(turn["role"], turn["content"]) for turn in value["turns" if own else "prompt"]]
        source = str(value.get("data_source") or "own")
        scorer = str(value["scorer"]) if own else SCORER_OF_SOURCE.get(source.rpartition("/")[2], "")
        if not own:
            if scorer == "textvqa":
                truth = json.loads(truth)
            if len(turns) == turns[0].images == 1:  # as `rows.from_verl` reads it: the image before the question
                turns = [ExampleTurn("user", IMAGE_TAG + turns[0].words.strip("\n"))]
            turns.append(ExampleTurn("assistant", truth[0] if isinstance(truth, list) else truth))
        extra = value.get("extra_info") or {}
        example = Example(
            id=str(extra.get("uid") or where),
            images=tuple(image["bytes"] for image in value["images"]),
            turns=tuple(turns),
            truth=truth,
            scorer=scorer,
            options=json.loads(value["options"]) if own else {},
            group=str(value["group"]) if own else "",
            split=str(extra.get("split") or ""),
            index=int(extra.get("index") or 0),
            source=source,
            metadata=json.loads(value["metadata"]) if own else {},
        )
    except (KeyError, TypeError, IndexError, AttributeError, ValueError):
        raise DataError(f"{where} is no example.", "Import it: vlmconsole data import", code="row-invalid") from None
    if not all(isinstance(image, bytes) for image in example.images) or not all(
        isinstance(turn.text, str) and turn.role in ROLES for turn in turns
    ):
        raise DataError(f"{where} is no example.", "Import it: vlmconsole data import", code="row-invalid")
    return example
