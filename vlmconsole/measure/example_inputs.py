"""Examples as load: a dataset's questions, or one prompt over a folder's images, each used once before any twice."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from vlmconsole.data.example import read_questions
from vlmconsole.data.manifest import manifest_digest, read_manifest
from vlmconsole.data.sources.source import IMAGE_SUFFIXES
from vlmconsole.errors import LabError
from vlmconsole.measure.inputs import encode, salt
from vlmconsole.measure.load import Body
from vlmconsole.models.messages import Message, to_record, to_request
from vlmconsole.text.counts import many
from vlmconsole.text.sizes import size
from vlmconsole.vision.images import Picture, PictureError, open_picture
from vlmconsole.vision.salted import reencoded, salted

WARM_TURN = 100_000  # of the first warm-up's salt: no repeat of a measured question comes so far
FREE = 1 << 30  # bytes that stay free on the disk that bodies are written to

Question = list[Message]


@dataclass
class Questions:
    """Where questions come from. `identity`: hash (hex) of what decides them; `name`: what it is called."""

    name: str
    identity: str
    read: Iterable[Question]


def dataset_questions(folder: Path, split: str) -> Questions:
    """Return the questions of a dataset's split; without a name, of its test split, or its only one. Raises
    LabError.
    """
    splits = sorted(path.stem for path in folder.glob("*.parquet"))
    chosen = split or ("test" if "test" in splits else splits[0] if len(splits) == 1 else "")
    if chosen not in splits:
        raise LabError(
            f"{folder.name} has {f'no split “{split}”' if split else 'several splits and none called test'}.",
            f"Set split to one of: {', '.join(splits)}.",
            code="split-missing",
        )
    digest = manifest_digest(read_manifest(folder))
    read = (example.messages() for example in read_questions(folder / f"{chosen}.parquet"))
    return Questions(f"{folder.name}/{chosen}", hashlib.sha256(f"{digest}/{chosen}".encode()).hexdigest(), read)


def folder_questions(folder: Path, prompt: str, each: int) -> Questions:
    """`prompt` about the images of a folder, `each` of them a request. Raises LabError where there are none."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file())
    if len(files) < each:
        raise LabError(f"{folder} holds {many(len(files), 'image')}; {each} are needed.", code="images-missing")
    whole = hashlib.sha256(f"{prompt}/{each}".encode())
    for path in files:
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())

    def read() -> Iterator[Question]:
        for at in range(0, len(files) - each + 1, each):
            try:
                pictures = tuple(open_picture(path) for path in files[at : at + each])
            except PictureError as error:
                raise LabError(f"An image cannot be used: {error}.", code=error.code) from None
            yield [Message("user", prompt, pictures)]

    return Questions(folder.name, whole.hexdigest(), read())


@dataclass
class SentImageFacts:
    """What the images of a load are like: sizes in pixels, bytes and formats as they are sent."""

    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    count: int = 0
    sent_bytes: int = 0

    def add(self, picture: Picture) -> None:
        self.sizes[picture.size] += 1
        self.formats[picture.mime] += 1
        self.count += 1
        self.sent_bytes += len(picture.data)

    def conditions(self) -> dict[str, Any]:
        """As conditions hold them; the span of sizes goes by their number of pixels."""
        if not self.count:
            return {"image": None}
        ends = [min(self.sizes, key=_pixels), max(self.sizes, key=_pixels)]
        spans = list(dict.fromkeys(f"{width}x{height}" for width, height in ends))
        formats = ", ".join(f"{name} {count}" for name, count in self.formats.most_common())
        return {
            "image": "–".join(spans),
            "image_formats": formats,
            "image_bytes": round(self.sent_bytes / self.count),
        }


def _pixels(shape: tuple[int, int]) -> int:
    return shape[0] * shape[1]


class ExampleInputs:
    """The bodies of a load made of questions. They are spooled to disk once: no more than one is in memory at a time.

    request: every field but the messages; cell: what salts repeats; jpeg: quality that images are encoded with anew.
    """

    def __init__(
        self, questions: Questions, request: dict[str, Any], cell: str, spool: IO[bytes], jpeg: int | None = None
    ) -> None:
        self.request, self.cell, self._spool = request, cell, spool
        self.images = SentImageFacts()
        self.identity, self.name = questions.identity, questions.name
        if jpeg is not None:
            self.identity = hashlib.sha256(f"{questions.identity}/jpeg {jpeg}".encode()).hexdigest()
        self._places: list[tuple[int, int]] = []
        self.record: dict[str, Any] = {}
        for question in questions.read:
            self._store(question if jpeg is None else [_with_jpeg(message, jpeg) for message in question])
        if not self._places:
            raise LabError(f"{questions.name} holds no question.", code="questions-missing")

    def _store(self, question: Question) -> None:
        for message in question:
            for picture in message.pictures:
                self.images.add(picture)
        if not self.record:
            self.record = {**self.request, "messages": to_record(question)}
        data = encode({"messages": to_request(question)})
        self._places.append((self._spool.tell(), len(data)))
        self._spool.write(data)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def mean_bytes(self) -> float:
        """Bytes of a question as it is sent, on the average."""
        return sum(length for _, length in self._places) / len(self._places)

    def order(self, count: int, seed: int) -> list[int]:
        """Return which question each request asks: all in an order that the seed draws, then all in another one."""
        draw, places = random.Random(seed), list(range(len(self)))
        chosen: list[int] = []
        while len(chosen) < count:
            draw.shuffle(places)
            chosen += places
        return chosen[:count]

    def bodies(self, order: Sequence[int], *, as_is: bool) -> Iterator[Body]:
        """Yield a body for each place of `order`. A question's second use is salted in text and images, or sent as it
        is.
        """
        used: Counter[int] = Counter()
        for place in order:
            turn = used[place]
            used[place] += 1
            messages = self.messages(place)
            if turn and not as_is:
                messages = salted_messages(messages, f"{self.cell}/{place}", turn)
            yield Body([encode({**self.request, "messages": messages})], frozenset({0}) if as_is else frozenset())

    def messages(self, place: int) -> list[dict[str, Any]]:
        """Return the messages of a question, as they are sent the first time."""
        offset, length = self._places[place]
        self._spool.seek(offset)
        messages: list[dict[str, Any]] = json.loads(self._spool.read(length))["messages"]
        return messages

    def warm_ups(self, order: Sequence[int], count: int) -> Iterator[Body]:
        """Salted bodies of the last questions of `order`, so that none of the measured ones is met before."""
        for number in range(count):
            place = order[-1 - number % len(order)]
            messages = salted_messages(self.messages(place), f"{self.cell}/warm-up", WARM_TURN + number)
            yield Body([encode({**self.request, "messages": messages})])

    def conditions(self, order: Sequence[int], *, as_is: bool) -> dict[str, Any]:
        """Return what is known of this load before it is sent."""
        repeats = len(order) - len(set(order))
        return {
            "data_sha256": self.identity,
            "repeats": None if not repeats else "as they are" if as_is else "salted",
            **self.images.conditions(),
        }

    def note(self, order: Sequence[int]) -> str:
        """Return which questions were asked, in a sentence."""
        repeats = len(order) - len(set(order))
        return f"{self.name}: {many(len(self), 'question')}, {repeats} of {len(order)} requests repeat one"

    def check_room(self, count: int, folder: Path, *, as_is: bool) -> None:
        """Raise LabError when the bodies of `count` requests do not fit on the disk of `folder`."""
        distinct = min(count, len(self)) if as_is else count
        wanted, free = distinct * self.mean_bytes, shutil.disk_usage(folder).free - FREE
        if wanted > free:
            raise LabError(
                f"The bodies of {count} requests take {size(wanted)} on disk, and {size(max(0, free))} are free.",
                "Measure fewer requests, or let questions repeat as they are (repeat_as_is).",
                code="disk-short",
            )


def _with_jpeg(message: Message, quality: int) -> Message:
    return replace(message, pictures=tuple(reencoded(picture, quality) for picture in message.pictures))


def salted_messages(messages: list[dict[str, Any]], name: str, turn: int) -> list[dict[str, Any]]:
    """Return the messages as no cache has met them: other words before the first text, a pixel of each image
    changed.
    """
    changed = json.loads(json.dumps(messages))
    words = f"Note: {salt(name, turn)} . "
    for message in changed:
        content = message["content"]
        if isinstance(content, str):
            if words:
                message["content"], words = words + content, ""
            continue
        for part in content:
            if part["type"] == "image_url":
                part["image_url"]["url"] = salted(part["image_url"]["url"], turn)
        if words:
            content.insert(0, {"type": "text", "text": words})
            words = ""
    return list(changed)
