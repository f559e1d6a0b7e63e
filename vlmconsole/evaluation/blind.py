"""The same questions without their images: grey ones, another example's, or none; how much of a score is looking."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import replace

from PIL import Image

from vlmconsole.data.example import Example, ExampleTurn
from vlmconsole.data.rows import IMAGE_TAG, DataError
from vlmconsole.evaluation.items import Item
from vlmconsole.evaluation.settings import Blind
from vlmconsole.gates.samples import images_hash

GREY = (128, 128, 128)


def blinded(items: Sequence[Item], how: Blind, seed: int) -> list[Item]:
    """Return the items that have images, each with its images taken away; id, question, truth and scorer stay.

    `swap`: another item's images, drawn by the seed, never ones with the same pixels. Raises DataError where no item
    has images, or a swap finds no other ones.
    """
    seen = [item for item in items if item.example.images]
    if not seen:
        raise DataError("None of these examples has an image to take away.", code="blind-imageless")
    if how == "swap":
        return list(_swapped(seen, seed))
    make = _grey if how == "grey" else _text_alone
    return [_with(item, make(item.example)) for item in seen]


def _with(item: Item, example: Example) -> Item:
    """The item asked about other images; its question keeps its hash."""
    return replace(
        item,
        example=example,
        picture_sha256=images_hash(example.image_sha256s),
        pixel_sha256=images_hash(example.pixel_sha256s),
    )


def _swapped(items: Sequence[Item], seed: int) -> Iterator[Item]:
    """Each with the images of the next one, in an order drawn by the seed, that shows none of the same pixels."""
    order = sorted(items, key=lambda item: hashlib.sha256(f"{seed}:{item.id}".encode()).digest())
    pixels = {item.id: set(item.example.pixel_sha256s) for item in order}
    place = {item.id: at for at, item in enumerate(order)}
    for item in items:
        later = (order[(place[item.id] + step) % len(order)] for step in range(1, len(order)))
        donor = next((other for other in later if not pixels[other.id] & pixels[item.id]), None)
        if donor is None:
            raise DataError(
                f"No other example has another image than {item.id}.",
                "Blind answers by swap need different images; take grey or none.",
                code="blind-alike",
            )
        images = donor.example.images
        taken = tuple(images[at % len(images)] for at in range(len(item.example.images)))
        yield _with(item, replace(item.example, images=taken))


def _grey(example: Example) -> Example:
    """Every image a grey one of its size, so that it makes as many visual tokens."""
    return replace(example, images=tuple(map(_grey_image, example.images)))


def _grey_image(image: bytes) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", Image.open(io.BytesIO(image)).size, GREY).save(out, "PNG")
    return out.getvalue()


def _text_alone(example: Example) -> Example:
    """The turns without their images."""
    turns = tuple(ExampleTurn(turn.role, turn.text.replace(IMAGE_TAG, "").strip()) for turn in example.turns)
    return replace(example, images=(), turns=turns)
