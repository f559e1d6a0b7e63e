"""Measure how often intervals hold the true paired difference, by simulation with a fixed seed.

`python tests/tools/coverage.py [--sets 2000] [--only N …]`. Each row is one kind of change at one n: the share of 2000
drawn sets whose 95 % interval holds the truth (all), and of those whose lower bound lies above it (low; 2.5 % wanted).
Methods: the percentile bootstrap, a t interval, and Gaffke's bounds, as `vlmconsole.scoring` computes them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats

from vlmconsole.scoring.bounded import paired_bounds

Numbers = np.ndarray[Any, Any]
Kind = tuple[str, float, Callable[[np.random.Generator, int], Numbers]]


def flips(won: float, lost: float) -> Callable[[np.random.Generator, int], Numbers]:
    """Differences of right or wrong: a share won, a share lost, the rest as before."""
    return lambda random, n: random.choice([1.0, -1.0, 0.0], size=n, p=[won, lost, 1 - won - lost])


def parts(random: np.random.Generator, n: int) -> Numbers:
    """Differences of scores of any size: before Beta(2, 2), after Beta(4, 2)."""
    return random.beta(4, 2, n) - random.beta(2, 2, n)


def halves(random: np.random.Generator, n: int) -> Numbers:
    """Differences of counting's halves: a quarter gains a half, one in twenty loses a half."""
    return random.choice([0.5, 0.0, -0.5], size=n, p=[0.25, 0.7, 0.05])


KINDS: list[Kind] = [
    ("won 30 %, lost 10 %", 0.2, flips(0.3, 0.1)),
    ("won 10 %, lost 2 %", 0.08, flips(0.1, 0.02)),
    ("won 5 %, lost 0", 0.05, flips(0.05, 0.0)),
    ("won 2 %, lost 2 %", 0.0, flips(0.02, 0.02)),
    ("halves: +25 %, −5 %", 0.1, halves),
    ("scores, Beta", 4 / 6 - 0.5, parts),
]
SIZES = (8, 12, 16, 24, 32, 64, 128)


def percentile(values: Numbers, random: np.random.Generator) -> tuple[float, float]:
    """The percentile bootstrap of the mean, 2000 resamples."""
    distinct, counts = np.unique(values, return_counts=True)
    drawn = random.multinomial(len(values), counts / len(values), size=2000) @ distinct / len(values)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def student(values: Numbers, _: np.random.Generator) -> tuple[float, float]:
    """The t interval of the mean."""
    half = float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
    return float(values.mean()) - half, float(values.mean()) + half


def gaffke(values: Numbers, _: np.random.Generator) -> tuple[float, float]:
    """Gaffke's bounds, 5000 draws."""
    interval = paired_bounds(np.maximum(0.0, -values).tolist(), np.maximum(0.0, values).tolist(), draws=5000)
    return interval.low, interval.high


METHODS = {"percentile": percentile, "t": student, "Gaffke": gaffke}


def row(kind: Kind, n: int, sets: int) -> str:
    """One line of the table."""
    name, truth, draw = kind
    cells = []
    for method in METHODS.values():
        random = np.random.default_rng([n, sets])
        ends = [method(draw(random, n), random) for _ in range(sets)]
        slack = 1e-9
        held = sum(low - slack <= truth <= high + slack for low, high in ends) / sets
        above = sum(low > truth + slack for low, _ in ends) / sets
        width = float(np.mean([high - low for low, high in ends]))
        cells.append(f"{100 * held:5.1f} / {100 * above:4.1f} / {width:.2f}")
    return f"| {name} | {n} | " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=2000)
    parser.add_argument("--only", type=int, nargs="*", default=SIZES)
    given = parser.parse_args()
    print(f"| change | n | {' | '.join(f'{name}: holds % / low end above % / width' for name in METHODS)} |")
    print("|---|--:|" + "--:|" * len(METHODS))
    for kind in KINDS:
        for n in given.only:
            print(row(kind, n, given.sets), flush=True)


if __name__ == "__main__":
    main()
