"""What verl 0.6.1 says while it trains: its console's step lines and its rollout files, as plain values.

Nothing here raises on what it reads: logs are cut, mixed and hold NaN.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vlmconsole.training.grpo import EPSILON

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_STEP = re.compile(r"(?:^|\s|\))step:(\d{1,9})(?= - |$)", re.ASCII)
_NUMBER = re.compile(
    r"(?:np\.\w+\()?\s*(-?(?:nan|inf|\d[\d_]*\.?\d*(?:e[+-]?\d+)?|\.\d+))\)?", re.ASCII | re.IGNORECASE
)
_MEMORY = re.compile(r"CUDA out of memory|OutOfMemoryError|CUDA error: out of memory|cudaErrorMemoryAllocation")

PART = "part/"  # before the name of a part of the reward, in a rollout file

#: verl's metric → the key of a training line
KEYS = {
    "critic/rewards/mean": "reward_mean",
    "actor/pg_loss": "loss",
    "actor/grad_norm": "grad_norm",
    "actor/entropy": "entropy",
    "actor/pg_clipfrac": "clip_fraction",
    "actor/lr": "lr",
    "response_length/mean": "length_mean",
    "perf/time_per_step": "seconds",
}


@dataclass(frozen=True)
class Printed:
    """One step line of the console: every metric that is a number (NaN and infinities included)."""

    step: int
    values: dict[str, float] = field(default_factory=dict)

    def line(self) -> dict[str, Any]:
        """Return the figures under this project's names; what verl did not print is left out."""
        return {
            "step": self.step,
            **{ours: self.values[theirs] for theirs, ours in KEYS.items() if theirs in self.values},
        }

    def not_numbers(self) -> list[str]:
        """Return the loss and gradient metrics that are NaN or infinite: the run is lost then."""
        return [key for key in ("actor/pg_loss", "actor/grad_norm") if not math.isfinite(self.values.get(key, 0.0))]


@dataclass(frozen=True)
class Sampled:
    """One line of a rollout file. `prompt` is as decoded by verl, `truth` the ground truth as text."""

    step: int
    prompt: str
    answer: str
    truth: str
    score: float
    valid: bool | None
    parts: dict[str, float] = field(default_factory=dict)  # of a reward, by name
    failed: bool = False


def read_line(line: str) -> Printed | None:
    """Return a step line of verl's console, with Ray's prefix and colours or without; None for every other line."""
    text = _ESCAPES.sub("", line).strip()
    match = _STEP.search(text)
    if match is None:
        return None
    values: dict[str, float] = {}
    for part in text[match.end() :].split(" - "):
        key, colon, value = part.strip().rpartition(":")
        number = _NUMBER.fullmatch(value.strip()) if colon and "/" in key else None
        if number is not None:
            values[key] = float(number[1].replace("_", ""))
    return Printed(int(match[1]), values)


def out_of_memory(line: str) -> bool:
    """Return whether a line tells that the GPU's memory did not suffice."""
    return _MEMORY.search(line) is not None


def read_rollouts(data: bytes) -> tuple[list[Sampled], int]:
    """Return the answers of a rollout file, and how many lines were torn or not in its shape."""
    rollouts: list[Sampled] = []
    bad = 0
    for raw in data.split(b"\n"):
        if not raw.strip():
            continue
        rollout = _sampled(raw)
        if rollout is None:
            bad += 1
        else:
            rollouts.append(rollout)
    return rollouts, bad


def _sampled(raw: bytes) -> Sampled | None:
    try:
        value = json.loads(raw.decode("utf-8", "replace"))
        score, step = value["score"], value["step"]
        texts = [value["input"], value["output"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    numbers = all(isinstance(item, int | float) and not isinstance(item, bool) for item in (score, step))
    if not numbers or not all(isinstance(text, str) for text in texts) or not math.isfinite(step):
        return None
    truth, valid = value.get("gts"), value.get("valid")
    return Sampled(
        int(step),
        texts[0],
        texts[1],
        truth if isinstance(truth, str) else "" if truth is None else json.dumps(truth),
        float(score),
        bool(valid) if isinstance(valid, int | float) and not math.isnan(valid) else None,
        {key.removeprefix(PART): float(part) for key, part in value.items() if key.startswith(PART) and _number(part)},
        value.get("failed") == 1,
    )


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def group_advantages(scores: Sequence[float], n: int) -> list[float]:
    """(r − mean) / (std + 1e-6) for consecutive groups of n, as verl computes it and does not print it."""
    import statistics

    made: list[float] = []
    for start in range(0, len(scores), n):
        group = scores[start : start + n]
        if not all(map(math.isfinite, group)):
            made += [math.nan] * len(group)
            continue
        mean = statistics.fmean(group)
        spread = statistics.stdev(group) if len(group) > 1 else 0.0
        made += [(score - mean) / (spread + EPSILON) for score in group]
    return made
