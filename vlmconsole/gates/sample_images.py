"""The image behind a sample: known by its hash, read from the lab's datasets or from the run that asked it."""

from __future__ import annotations

from pathlib import Path

from vlmconsole.data.generations import generations
from vlmconsole.data.rows import DataError, read_rows
from vlmconsole.data.splits import PictureIndex
from vlmconsole.gates.samples import Sample
from vlmconsole.ledger.chain import sha256_file
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.vision.images import Picture, PictureError, open_picture

RECENT = 32  # images held in memory


class SampleImages:
    """Images of samples, the most recent ones held."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._recent: dict[str, Picture] = {}

    def image(self, sample: Sample, run: Path) -> Picture:
        """Return the image of `sample`, checked by its hash.

        Raises PictureError, one line, when neither a dataset of the lab nor `run` holds it.
        """
        wanted = sample.picture_sha256
        if wanted in self._recent:
            return self._recent[wanted]
        data = self._bytes(wanted, run)
        if data is None:
            raise PictureError(f"the image {wanted[:12]}… is in no dataset of this lab", code="image-missing")
        image = open_picture(data, name=f"{sample.id}.png")
        self._recent = {**dict(list(self._recent.items())[1 - RECENT :]), wanted: image}
        return image

    def _bytes(self, wanted: str, run: Path) -> bytes | None:
        stored = RunFolder(run).file(f"pictures/{wanted[:16]}.png")
        if stored.is_file() and sha256_file(stored) == wanted:
            return stored.read_bytes()
        for known in PictureIndex(self._places.datasets).find([wanted]):
            for folder in generations(self._places.datasets, known.dataset):
                try:
                    rows = read_rows(folder / f"{known.split}.parquet")
                    match = next((row.picture for row in rows if row.sha256 == wanted), None)
                except DataError:
                    continue  # deleted or damaged: another dataset may hold the same image
                if match is not None:
                    return match
        return None
