"""The images behind a sample: known by their hash, read from the lab's datasets or from the run that asked it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from vlmconsole.data.browse import BrowsedSplit
from vlmconsole.data.generations import generations
from vlmconsole.data.rows import DataError
from vlmconsole.data.splits import PictureIndex
from vlmconsole.gates.samples import Sample, images_hash
from vlmconsole.ledger.chain import sha256_file
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.vision.images import Picture, PictureError, open_picture

RECENT = 32  # samples whose images are held in memory
OPEN = 4  # splits held open

Images = tuple[bytes, ...]


class SampleImages:
    """Images of samples, the most recent ones held."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._recent: dict[str, tuple[Picture, ...]] = {}
        self._splits: dict[tuple[Path, int], tuple[BrowsedSplit, dict[str, int]]] = {}

    def image(self, sample: Sample, run: Path) -> Picture:
        """Return the first image of `sample`. Raises PictureError as `images`, and where it has none."""
        images = self.images(sample, run)
        if not images:
            raise PictureError(f"{sample.id} was asked without an image", code="image-none")
        return images[0]

    def images(self, sample: Sample, run: Path) -> tuple[Picture, ...]:
        """Return all images of `sample`, checked by their hash; () where it was asked without one.

        Raises PictureError, one line, when neither a dataset of the lab nor `run` holds them.
        """
        wanted = sample.picture_sha256
        if wanted == images_hash([]):
            return ()
        if wanted not in self._recent:
            data = next(self._matching(sample, run), None)
            if data is None:
                raise PictureError(f"the image {wanted[:12]}… is in no dataset of this lab", code="image-missing")
            images = tuple(open_picture(image, name=f"{sample.id}.png") for image in data)
            self._recent = {**dict(list(self._recent.items())[1 - RECENT :]), wanted: images}
        return self._recent[wanted]

    def _matching(self, sample: Sample, run: Path) -> Iterator[Images]:
        wanted = sample.picture_sha256
        stored = RunFolder(run).file(f"pictures/{wanted[:16]}.png")
        if stored.is_file() and sha256_file(stored) == wanted:
            yield (stored.read_bytes(),)
        datasets = self._places.datasets
        places = [(sample.dataset, sample.split, sample.id)] if sample.dataset else []
        places += [(known.dataset, known.split, known.uid) for known in PictureIndex(datasets).find([wanted])]
        for dataset, split, uid in places:
            for folder in generations(datasets, dataset):
                try:
                    yield from self._asked(folder / f"{split}.parquet", uid, wanted)
                except DataError:
                    continue  # deleted or damaged: another dataset may hold the same image

    def _asked(self, path: Path, uid: str, wanted: str) -> Iterator[Images]:
        """The images of a split's example, or of the first of its questions, where they have the hash."""
        split, numbers = self._split(path)
        number = numbers.get(uid, numbers.get(uid.rpartition("#")[0]))
        if number is None:
            return
        images = split.example(number).images
        hashes = split.example(number).image_sha256s
        for count in range(len(images), 0, -1):
            if images_hash(hashes[:count]) == wanted:
                yield images[:count]

    def _split(self, path: Path) -> tuple[BrowsedSplit, dict[str, int]]:
        try:
            key = (path, path.stat().st_ino)  # a dataset that was replaced has another file there
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}", code="parquet-invalid") from None
        if key not in self._splits:
            opened = BrowsedSplit(path)
            numbers = {example.id: number for number, example in enumerate(opened.examples)}
            for old in list(islice(self._splits, max(0, len(self._splits) + 1 - OPEN))):
                self._splits.pop(old)[0].close()
            self._splits[key] = opened, numbers
        return self._splits[key]
