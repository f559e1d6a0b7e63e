"""How far a change may be chance: what the requests of both sides, each resampled, leave open."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from vlmconsole.runs.folder import RunFolder
from vlmconsole.scoring.intervals import LEAST, unpaired_interval
from vlmconsole.text.numbers import change, number

#: figures that each request has of its own, so that their change can be held against the requests' scatter
OF_REQUESTS = ("ttft_s", "tpot_s", "e2e_s")
Values = dict[str, list[float]]
NO_VALUES: tuple[Values, Values] = ({}, {})
RESAMPLES = 1999
TOO_FEW = "too few to tell"
#: what is said beside intervals
INTERVAL_MEANS = (
    "95 % interval of the change: bootstrap of the medians over each side's requests. What else ran on the machine is"
    " not in it: the same measurement twice may differ by more."
)


def noise(a: Sequence[float], b: Sequence[float]) -> tuple[tuple[float, float] | None, str]:
    """Return how far the change of a median may be chance: its interval, as shares of the first, and the same in
    words.
    """
    if not a or not b or min(min(a), min(b)) <= 0:
        return None, ""
    if min(len(a), len(b)) < LEAST:
        return None, f"{TOO_FEW} (n = {min(len(a), len(b))} < {LEAST})"
    low, high = _interval(tuple(a), tuple(b))
    interval = f"{change(low)} … {change(high)}"
    return (low, high), f"{interval}: {TOO_FEW}" if low <= 0 <= high else interval


@lru_cache(4096)
def _interval(a: tuple[float, ...], b: tuple[float, ...]) -> tuple[float, float]:
    interval = unpaired_interval(a, b, relative=True, resamples=RESAMPLES)
    return interval.low, interval.high


def request_values(run: RunFolder) -> dict[str, Values]:
    """Return what each counted request of a run took, by cell ("" where it has only one) and figure, in seconds."""
    values: dict[str, Values] = {}
    for row in run.read_jsonl("requests.jsonl"):
        if row.get("phase") != "measured" or row.get("counted") is not True or "role" in row:
            continue
        for key in OF_REQUESTS:
            if (value := number(row.get(key))) is not None:
                values.setdefault(str(row.get("cell", "")), {}).setdefault(key, []).append(value)
    return values


def whole(values: Values, summary: dict[str, Any]) -> Values:
    """Only what is as many values as the summary counted: others are of another measurement, or rows are missing."""
    counts = {key: given.get("n") for key in values if isinstance(given := summary.get(key), dict)}
    return {key: value for key, value in values.items() if counts.get(key) == len(value)}
