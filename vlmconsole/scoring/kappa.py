"""Cohen's κ: how far two judges of the same answers agree beyond chance, with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vlmconsole.scoring.intervals import CONFIDENCE, RESAMPLES

LEAST_NOTES = 30  # pairs below which a κ is not told


@dataclass(frozen=True)
class KappaAgreement:
    """κ from −1 to 1 with its percentile interval (answers resampled), the share of like verdicts, and n."""

    n: int
    kappa: float
    low: float
    high: float
    same: float


def cohens_kappa(first: Sequence[bool], second: Sequence[bool], seed: int = 0) -> KappaAgreement:
    """κ of two judges' verdicts on the same answers, in the same order. Where both always say the same one word, κ is
    not defined, and 0 here: chance alone would give that agreement.

    Raises ValueError for lists of unlike length or fewer than LEAST_NOTES pairs.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} verdicts are no pairs")
    if len(first) < LEAST_NOTES:
        raise ValueError(f"{len(first)} pairs, at least {LEAST_NOTES} are needed")
    a, b = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    picks = np.random.default_rng(seed).integers(0, len(a), (RESAMPLES, len(a)))
    spread = _kappas(a[picks], b[picks])
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(spread, [tail, 1 - tail])
    return KappaAgreement(len(a), float(_kappas(a, b)), float(low), float(high), float((a == b).mean()))


def _kappas(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """κ along the last axis."""
    same = (a == b).mean(-1)
    p, q = a.mean(-1), b.mean(-1)
    chance = p * q + (1 - p) * (1 - q)
    room = np.where(chance < 1, 1 - chance, 1.0)
    return np.asarray(np.where(chance < 1, (same - chance) / room, 0.0))
