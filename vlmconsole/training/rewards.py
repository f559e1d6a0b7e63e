"""The reward of a GRPO run: how examples are judged, what a run keeps of it, and what its answers did to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from vlmconsole.data.example import Example
from vlmconsole.runs.folder import RunFolder, write_atomic
from vlmconsole.scoring.rewards import JudgedExample, Reward
from vlmconsole.scoring.scorers import Scored

REWARD = "reward.json"  # in the run folder: parts, weights, hashes


def judged(example: Example) -> JudgedExample:
    """Return what a reward may know of an example."""
    return JudgedExample(
        example.truth, example.scorer, example.options, example.question, uid=example.id, source=example.source
    )


def reward_example(reward: Reward, example: Example, answer: str) -> Scored:
    """Judge one sampled answer; `details` hold the parts. Raises ScoringError for a truth that does not fit."""
    return reward.judge(answer, judged(example))


def keep_reward(run: RunFolder, reward: Reward) -> dict[str, Any]:
    """Write what rewards this run: `reward.json`, and the source of each function beside it; return the former."""
    sources = {}
    for name, scorer in reward.sources().items():
        copy = f"reward-{scorer.source_sha256[:12]}-{scorer.path.name}"
        write_atomic(run.file(copy), scorer.path.read_bytes())
        sources[name] = {"file": str(scorer.path), "sha256": scorer.source_sha256, "copy": copy}
    parts = [part.model_dump(mode="json") for part in reward.parts]
    value = {"names": reward.names, "parts": parts, "identity": reward.identity(), "sources": sources}
    run.write_json(REWARD, value)
    return value


def part_means(scored: Sequence[Scored]) -> dict[str, float]:
    """Return the mean of each part over some answers."""
    names = scored[0].details.get("parts", {}) if scored else {}
    return {name: sum(answer.details["parts"][name] for answer in scored) / len(scored) for name in names}


def failures(scored: Iterable[Scored]) -> list[str]:
    """Return why the reward of an answer failed, one reason an answer."""
    return [answer.reason for answer in scored if answer.details.get("failed")]
