"""verl's reward function for the counting task (`custom_reward_function.path` points at this file)."""

from __future__ import annotations

from typing import Any

from vlmconsole.scoring.reward import read_truth, score_counts


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
