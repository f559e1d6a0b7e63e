"""A split to leaf through: every example without its images at once, and the images of any one by its row group."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from vlmconsole.data.example import Example, from_columns
from vlmconsole.data.rows import IMAGE_TAG, DataError

RECENT = 3  # row groups whose images are held: 128 examples each in a file that `write_examples` wrote
_BATCH = 1024  # rows read at once without their images


class BrowsedSplit:
    """A split's Parquet file, open. Safe under several threads. Raises DataError for a file that cannot be read.

    `examples` have no images, however many tags their turns have; :meth:`example` reads those of one.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self.path = path
        self._lock = threading.Lock()
        self._groups: OrderedDict[int, Any] = OrderedDict()
        with _readable(path):
            # An open file: pyarrow takes no path that is not UTF-8.
            self._file = pq.ParquetFile(path.open("rb"))
            meta = self._file.metadata
            counts = [meta.row_group(number).num_rows for number in range(meta.num_row_groups)]
            self._ends = list(accumulate(counts))
            columns = [name for name in self._file.schema_arrow.names if name != "images"]
            self.examples: tuple[Example, ...] = tuple(self._heads(columns))

    def _heads(self, columns: list[str]) -> Iterator[Example]:
        number = 0
        for batch in self._file.iter_batches(batch_size=_BATCH, columns=columns):
            for value in batch.to_pylist():
                number += 1
                yield from_columns({**value, "images": ()}, f"{self.path.name} row {number}")

    def __len__(self) -> int:
        return len(self.examples)

    def example(self, index: int) -> Example:
        """Return the example at `index` with its images. Raises DataError where its row group is damaged."""
        group = bisect_right(self._ends, index)
        images = self._images(group)[index - (self._ends[group - 1] if group else 0)].as_py() or ()
        if not all(isinstance(image, dict) and isinstance(image.get("bytes"), bytes) for image in images):
            raise DataError(f"{self.path.name} row {index + 1} holds images that are no bytes.", code="row-invalid")
        return replace(self.examples[index], images=tuple(image["bytes"] for image in images))

    def _images(self, group: int) -> Any:
        """A row group's column of images; the last few are held."""
        with self._lock:
            if group not in self._groups:
                with _readable(self.path):
                    table = self._file.read_row_group(group, columns=["images"])
                self._groups[group] = table.column(0)
                while len(self._groups) > RECENT:
                    self._groups.popitem(last=False)
            self._groups.move_to_end(group)
            return self._groups[group]

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._groups.clear()
            self._file.close(force=True)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:  # ValueError: closed meanwhile
        raise DataError(f"{path} cannot be read as Parquet: {error}", code="parquet-invalid") from None


def image_count(example: Example) -> int:
    """Return how many images an example has, by the tags of its turns."""
    return sum(turn.text.count(IMAGE_TAG) for turn in example.turns)
