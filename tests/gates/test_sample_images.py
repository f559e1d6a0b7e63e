"""The images behind samples: of one image, of several, of none; found again after a replacement, or missed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from examples import conversation, imported, scene, several
from refusals import refused

from vlmconsole.data.example import Example
from vlmconsole.gates.sample_images import SampleImages
from vlmconsole.gates.samples import Sample, asked_hash, images_hash, truth_hash
from vlmconsole.runs.places import Places
from vlmconsole.vision.images import PictureError


def sample(example: Example, dataset: str = "mixed") -> Sample:
    return Sample(
        id=example.id,
        group="test",
        picture_sha256=images_hash(example.image_sha256s),
        pixel_sha256=images_hash(example.pixel_sha256s),
        prompt_sha=asked_hash(example),
        answer="circle",
        truth=example.truth,
        valid=True,
        all_correct=True,
        partial=1.0,
        reward=1.0,
        dataset=dataset,
        split="test",
        t=1.0,
    )


@pytest.fixture
def places(tmp_path: Path) -> Places:
    places = Places(tmp_path).ensure()
    imported(places.datasets, "mixed", {"test": ("test", several("test", 5))})
    return places


def test_every_image_of_every_question_is_there(places: Places, tmp_path: Path) -> None:
    images = SampleImages(places)
    asked = [question for example in several("test", 5) for question in example.questions()]
    for question in asked:
        assert [image.data for image in images.images(sample(question), tmp_path)] == list(question.images), question.id
    assert [len(question.images) for question in asked] == [1, 2, 0, 1, 2, 1]
    assert images.image(sample(asked[1]), tmp_path).data == asked[1].images[0]
    with refused("image-none", asked[2].id, error=PictureError):
        images.image(sample(asked[2]), tmp_path)


def test_a_replaced_or_deleted_dataset_is_read_as_it_is_now(places: Places, tmp_path: Path) -> None:
    images = SampleImages(places)
    first, second = several("test", 2)
    assert images.images(sample(second), tmp_path)
    shutil.rmtree(places.datasets / "mixed")
    other = replace(first, id=second.id, images=(scene("other"),))
    imported(places.datasets, "mixed", {"test": ("test", [other])})
    assert images.images(sample(other), tmp_path)[0].data == other.images[0]
    with refused("image-missing", error=PictureError):
        images.images(sample(first), tmp_path)


def test_hashes_of_one_image_are_those_of_before() -> None:
    image = scene("hash")
    example = conversation(("user", "<image>How many?"), ("assistant", "3"), images=[image])
    import hashlib

    assert images_hash(example.image_sha256s) == hashlib.sha256(image).hexdigest()
    assert asked_hash(example) == hashlib.sha256(b"How many?").hexdigest()
    bare = conversation(("user", "How many?"), ("assistant", "3"))
    later = conversation(("user", "How many?<image>"), ("assistant", "3"), images=[image])
    twice = replace(example, images=(image, image))
    hashes = [asked_hash(one) for one in (example, bare, later)]
    assert len(set(hashes)) == 3 and images_hash(bare.image_sha256s) == hashlib.sha256(b"").hexdigest()
    assert len({images_hash(one.image_sha256s) for one in (example, bare, twice)}) == 3
    assert truth_hash(2) != truth_hash("2") and truth_hash(("a", "b")) == truth_hash(["a", "b"])
