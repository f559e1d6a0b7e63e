"""A function in a file tried on a few truths before anything trains by it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from vlmconsole.scoring.python_scorer import PythonScorer

TRIED = 8  # rows


class Judgeable(Protocol):
    """What is tried: an example's id and truth."""

    @property
    def id(self) -> str: ...

    @property
    def truth(self) -> Any: ...


def trial(scorer: PythonScorer, options: Mapping[str, Any], limit: float, rows: Sequence[Judgeable]) -> str:
    """Return why a function cannot judge one of the first rows, each answered with its own truth; "" when it can.

    Runs in a child process, within `limit` seconds a row; the same question is answered once.
    """
    asked = tuple((row.id, json.dumps(row.truth, ensure_ascii=False)) for row in rows[:TRIED])
    return _trial(scorer, json.dumps(dict(options), sort_keys=True, default=str), limit, asked)


@lru_cache(maxsize=256)
def _trial(scorer: PythonScorer, options: str, limit: float, rows: tuple[tuple[str, str], ...]) -> str:
    try:
        for uid, text in rows:
            truth = json.loads(text)
            answer = truth if isinstance(truth, str) else truth[0] if _texts(truth) else text
            score = scorer.judge(answer, truth, json.loads(options), limit=limit, extra_info={"uid": uid})
            if score.details.get("failed"):
                return f"{uid}: {score.reason}"
    finally:
        scorer.process.close()
    return ""


def _texts(truth: Any) -> bool:
    return isinstance(truth, list) and bool(truth) and all(isinstance(answer, str) for answer in truth)
