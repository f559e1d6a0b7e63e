"""verl's reward functions (`custom_reward_function.path` points at this file, `.name` at the scorer's function)."""

from __future__ import annotations

from typing import Any

from vlmconsole.scoring import scorers
from vlmconsole.scoring.reward import read_truth, score_counts

#: scorer of a preset → the function here; every one gives the rewards of `scorers.score`
FUNCTIONS = {"counting": "compute_score", "naming": "naming_score"}


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
    score = scorers.score("naming", solution_str, ground_truth)
    return {
        "score": score.reward,
        "all_correct": float(score.all_correct),
        "partial": score.partial,
        "valid": float(score.valid),
    }
