"""How much room a dataset's largest example needs: bytes of text, and sizes of images."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from vlmconsole.data.browse import BrowsedSplit
from vlmconsole.data.example import Example
from vlmconsole.data.rows import DataError

LOOKED_AT = 256  # examples of a split whose images are opened, evenly spaced; all texts are read


@dataclass(frozen=True)
class LongestExample:
    """UTF-8 bytes of the longest question with all before it, and of the longest answers; the largest set of images as
    (width, height) in pixels.
    """

    asked_bytes: int = 0
    answer_bytes: int = 0
    images: tuple[tuple[int, int], ...] = ()


def longest_example(paths: Iterable[Path]) -> LongestExample:
    """Return the largest of each in these splits, images among `LOOKED_AT` of each. Raises DataError."""
    longest = LongestExample()
    for path in paths:
        split = BrowsedSplit(path)
        try:
            for example in split.examples:
                asked = sum(len(turn.words.encode()) for turn in example.asked)
                answers = sum(len(turn.text.encode()) for turn in example.turns if turn.role == "assistant")
                longest = LongestExample(
                    max(longest.asked_bytes, asked), max(longest.answer_bytes, answers), longest.images
                )
            for number in range(0, len(split), max(1, len(split) // LOOKED_AT)):
                images = _sizes(split.example(number))
                if _pixels(images) > _pixels(longest.images):
                    longest = LongestExample(longest.asked_bytes, longest.answer_bytes, images)
        finally:
            split.close()
    return longest


def _sizes(example: Example) -> tuple[tuple[int, int], ...]:
    """Each image's size, from its head alone."""
    try:
        return tuple(Image.open(io.BytesIO(image)).size for image in example.images)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"An image of {example.id} cannot be read: {error}.", code="image-invalid") from None


def _pixels(images: Iterable[tuple[int, int]]) -> int:
    return sum(width * height for width, height in images)
