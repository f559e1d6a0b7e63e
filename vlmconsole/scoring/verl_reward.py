"""verl's reward functions (`custom_reward_function.path` points at this file, `.name` at the scorer's function).

For `counting` and `naming` verl gets this file itself. For every other reward a run writes `LOADER` into its folder, a
file of two lines, and beside it a table of the reward's parts and where the examples' truths lie.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from vlmconsole.scoring import scorers
from vlmconsole.scoring.reward import read_truth, score_counts
from vlmconsole.scoring.rewards import JudgedExample, Reward, RewardPart
from vlmconsole.scoring.scorers import Scored

#: scorer of a preset → the function here; every one gives the rewards of `scorers.score`
FUNCTIONS = {"counting": "compute_score", "naming": "naming_score"}
LOADER = "verl_reward.py"  # in a run's folder, for verl to import
TABLE = "verl-reward.json"
LOADED = "compute_score"  # the function in it


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any
) -> dict[str, float]:
    """Called by verl with keywords, once an answer; `ground_truth` is the truth as JSON text.

    The extra figures beside `score` are numbers because verl averages them into its metrics.
    Raises TruthError on broken data: a silent zero would be trained on.
    """
    score = score_counts(solution_str, read_truth(ground_truth))
    return {
        "score": score.reward,
        "all_correct": float(score.all_correct),
        "partial": score.partial,
        "valid": float(score.valid),
    }


def naming_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any
) -> dict[str, float]:
    """As `compute_score`, for one word that names a thing. Raises ScoringError on broken data."""
    return _figures(scorers.score("naming", solution_str, ground_truth))


def write_loader(folder: Path, reward: Reward, truths: dict[str, dict[str, Any]]) -> Path:
    """Write what verl imports for a reward into a run's folder; return the file.

    `truths`: example id → `truth`, `scorer`, `options`, `question` (verl itself carries the truth as text alone).
    """
    table = {"parts": [part.model_dump(mode="json") for part in reward.parts], "truths": truths}
    table["sources"] = {scorer.name: scorer.source_sha256 for scorer in reward.sources().values()}
    (folder / TABLE).write_text(json.dumps(table, ensure_ascii=False), encoding="utf-8")
    lines = ("from vlmconsole.scoring.verl_reward import loaded_reward", f"{LOADED} = loaded_reward(__file__)", "")
    (folder / LOADER).write_text("\n".join(lines), encoding="utf-8")
    return folder / LOADER


def loaded_reward(loader: str) -> Callable[..., dict[str, float]]:
    """Return the function that verl calls for the table beside a loader's file."""
    folder = Path(loader).parent

    def rewarded(
        data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any
    ) -> dict[str, float]:
        reward, truths = _table(folder)
        uid = str((extra_info or {}).get("uid") or "")
        if uid not in truths:
            raise KeyError(f"the example {uid!r} is not of this run's data")
        known = truths[uid]
        example = JudgedExample(
            known["truth"], known["scorer"], known["options"], known["question"], uid, str(data_source)
        )
        scored = reward.judge(solution_str, example)
        parts = {f"part/{name}": value for name, value in scored.details["parts"].items()}
        return {**_figures(scored), "failed": float(bool(scored.details.get("failed"))), **parts}

    return rewarded


@cache
def _table(folder: Path) -> tuple[Reward, dict[str, dict[str, Any]]]:
    table = json.loads((folder / TABLE).read_text(encoding="utf-8"))
    reward = Reward([RewardPart.model_validate(part) for part in table["parts"]])
    for scorer in reward.sources().values():
        if table["sources"].get(scorer.name) != scorer.source_sha256:
            raise RuntimeError(f"{scorer.path} was changed since the run began")
    return reward, table["truths"]


def _figures(scored: Scored) -> dict[str, float]:
    return {
        "score": scored.reward,
        "all_correct": float(scored.all_correct),
        "partial": scored.partial,
        "valid": float(scored.valid),
    }
