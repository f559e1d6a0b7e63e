"""Which images may show the same pixels, and which look alike, told from their small greys.

Equal pixels give equal greys, but for rounding: a JPEG's is made at an eighth of its size. So whatever lies further
apart than `ROUNDING` differs for sure, and only what is nearer is decoded whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from vlmconsole.data.importing.image_facts import ImageFacts, perceptual_hashes
from vlmconsole.vision.quick_look import GREY

ROUNDING = 24.0  # levels of 256, of a mean over a twelfth; 15 is the most seen, in saturated noise at quality 5
NEAR_BITS = 4  # of 64: perceptual hashes that differ in no more are near-duplicates
_BAND = 13  # bits: five bands, of which one is equal where at most 4 bits differ
_MOST = 10_000  # pairs looked for: beyond it they are no exception


def undecided(images: Sequence[ImageFacts], others: Sequence[ImageFacts] | None = None) -> set[str]:
    """Hash of each image, of either list, that may equal one of `others` (of its own list without) in its pixels.

    Pairs of which both pixel hashes are known need no decoding, and are left out.
    """
    hashes: set[str] = set()
    ours, theirs = _by_size(images), _by_size(images if others is None else others)
    for size, group in ours.items():
        if size not in theirs or (others is None and len(group) < 2):
            continue
        if others is None:
            hashes |= _within(group)
        else:
            hashes |= _between(group, theirs[size]) | _between(theirs[size], group)
    return hashes


def _within(group: Sequence[ImageFacts]) -> set[str]:
    by_grey: dict[bytes, list[ImageFacts]] = defaultdict(list)
    for facts in group:
        by_grey[facts.grey].append(facts)
    equal = [facts for same in by_grey.values() if len(same) > 1 for facts in same]
    kinds = [same[0] for same in by_grey.values()]
    near = [kind for kind, close in zip(kinds, _nearest(kinds, kinds, 2), strict=True) if close]
    all_near = {facts.sha256: facts for kind in near for facts in by_grey[kind.grey]} | {f.sha256: f for f in equal}
    if all(facts.pixel_sha256 for facts in all_near.values()):
        return set()
    return {facts.sha256 for facts in all_near.values() if not facts.pixel_sha256}


def _between(group: Sequence[ImageFacts], others: Sequence[ImageFacts]) -> set[str]:
    """Of `group`, what is near one of `others` and has no pixel hash yet."""
    open_group = [facts for facts in group if not facts.pixel_sha256]
    return {facts.sha256 for facts, close in zip(open_group, _nearest(open_group, others, 1), strict=True) if close}


def _nearest(group: Sequence[ImageFacts], others: Sequence[ImageFacts], k: int) -> NDArray[np.bool_]:
    from scipy.spatial import cKDTree

    if not group:
        return np.zeros(0, np.bool_)
    distances, _ = cKDTree(_means(others)).query(_means(group), k=[k], p=np.inf, distance_upper_bound=ROUNDING)
    near: NDArray[np.bool_] = np.isfinite(distances[:, 0])
    return near


def _means(group: Sequence[ImageFacts]) -> NDArray[np.float64]:
    """Mean brightness of 3 × 4 parts of each image."""
    columns, rows = GREY
    cells = np.frombuffer(b"".join(facts.grey for facts in group), np.uint8).reshape(-1, rows // 2, 2, columns // 3, 3)
    means: NDArray[np.float64] = cells.mean(axis=(2, 4)).reshape(len(group), -1)
    return means


def _by_size(images: Iterable[ImageFacts]) -> dict[tuple[int, int], list[ImageFacts]]:
    sizes: dict[tuple[int, int], list[ImageFacts]] = defaultdict(list)
    for facts in images:
        sizes[facts.width, facts.height].append(facts)
    return sizes


def same_pixels(images: Mapping[str, ImageFacts]) -> dict[str, str]:
    """Hash of each image whose pixels another one shows too → the hash by which all of them are known."""
    first: dict[str, str] = {}
    return {
        sha: known
        for sha, facts in images.items()
        if facts.pixel_sha256 and (known := first.setdefault(facts.pixel_sha256, sha)) != sha
    }


def near_duplicates(images: Mapping[str, ImageFacts], splits: Mapping[str, set[str]]) -> list[tuple[str, str, int]]:
    """(hash of an image, of another in another split, bits that differ), the nearest first.

    `splits`: an image's hash → the splits it is in. Images of equal pixels stand in one split, and are no pair.
    """
    shas = [sha for sha in images if sha in splits]
    if not shas:
        return []
    hashes = perceptual_hashes([images[sha].grey for sha in shas])
    by_hash: dict[int, list[str]] = defaultdict(list)
    for sha, value in zip(shas, hashes.tolist(), strict=True):
        by_hash[value].append(sha)
    pairs: dict[tuple[str, str], int] = {}
    for same in by_hash.values():
        _pair(pairs, same, same, 0, splits)
    for first, second, bits in _close(np.array(list(by_hash), np.uint64)):
        _pair(pairs, by_hash[first], by_hash[second], bits, splits)
        if len(pairs) >= _MOST:
            break
    return sorted(((*pair, bits) for pair, bits in pairs.items()), key=lambda pair: (pair[2], pair[:2]))


def _pair(
    pairs: dict[tuple[str, str], int], ours: list[str], theirs: list[str], bits: int, splits: Mapping[str, set[str]]
) -> None:
    """Add the first image of each split on one side with the first of each other split on the other."""
    first: dict[str, str] = {}
    for sha in ours:
        for split in splits[sha]:
            first.setdefault(split, sha)
    for sha in theirs:
        for split, other in first.items():
            if split not in splits[sha] and sha != other:
                pairs.setdefault((min(sha, other), max(sha, other)), bits)


def _close(hashes: NDArray[np.uint64]) -> Iterable[tuple[int, int, int]]:
    """Each pair of different hashes that differ in at most NEAR_BITS, by the bands of which one must be equal."""
    known: set[tuple[int, int]] = set()
    for band in range(0, 64, _BAND):
        keys = (hashes >> np.uint64(band)) & np.uint64((1 << _BAND) - 1)
        order = np.argsort(keys, kind="stable")
        edges = np.flatnonzero(np.diff(keys[order])) + 1
        for bucket in np.split(order, edges):
            for at, index in enumerate(bucket[:-1]):
                rest = bucket[at + 1 :]
                bits = np.unpackbits((hashes[rest] ^ hashes[index]).view(np.uint8).reshape(-1, 8), axis=1).sum(axis=1)
                for other, differing in zip(rest[bits <= NEAR_BITS], bits[bits <= NEAR_BITS], strict=True):
                    pair = (int(hashes[min(index, other)]), int(hashes[max(index, other)]))
                    if pair not in known:
                        known.add(pair)
                        yield *pair, int(differing)
