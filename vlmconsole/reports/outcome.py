"""What a run came to in a word: a verdict of gates or audits, INVALID, a cache probe's finding, a smoke's answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlmconsole.evaluation.scores import short_score
from vlmconsole.gates.trained import standing
from vlmconsole.runs.folder import RunFolder
from vlmconsole.scoring.learning import TrainingOutcome
from vlmconsole.text.numbers import figure, number, percent
from vlmconsole.text.plain import one_line

INVALID = "INVALID"  # of a measurement that counts for nothing
SMOKE_WRONG = "NOT RIGHT"  # of a server that answers, and answers wrongly
SMOKE_RIGHT = "right"


def outcome(run: RunFolder) -> str:
    """Return the word; "" of a run in which nothing was judged. A PASS by a plan that was frozen late is no plain
    one.
    """
    summary = run.read_json("summary.json")
    values: Mapping[str, Any] = summary if isinstance(summary, dict) else {}
    verdict = values.get("verdict")
    if isinstance(verdict, str):
        return standing(run, one_line(verdict, 20))
    if values.get("valid") is False:
        return INVALID
    if run.job().get("kind") == "smoke" and isinstance(values.get("right"), bool):
        return SMOKE_RIGHT if values["right"] else SMOKE_WRONG
    return ""


def reason(summary: Mapping[str, Any]) -> str:
    """Return why a run came to its outcome, as its summary holds it; "" where it holds none."""
    held = summary.get("cells")
    listed = held if isinstance(held, list) else []
    bad = [cell for cell in listed if isinstance(cell, dict) and cell.get("state") != "valid"]
    if bad:
        first = f"{bad[0].get('name')}: {bad[0].get('why') or 'not known'}"
        return one_line(f"{len(bad)} of {len(listed)} cells set aside; {first}", 300)
    why = summary.get("why")
    if isinstance(why, dict):
        why = next((why[key] for key in ("right", "usable", "reachable") if why.get(key)), "")
    return one_line(str(summary.get("invalid_because") or why or ""), 300)


def headline(summary: Mapping[str, Any]) -> str:
    """Return a run's figure in a few words, from what its kind is known to store; "" for none."""
    ttft = summary.get("ttft_s")
    if isinstance(ttft, dict) and number(ttft.get("p50")) is not None:
        return f"TTFT {figure(ttft['p50'])} s"
    cells, n = summary.get("cells"), number(summary.get("n"))
    if isinstance(cells, list | dict):
        return f"{len(cells)} cells"
    if score := short_score(summary):
        return score
    epoch, steps = number(summary.get("epoch")), number(summary.get("steps"))
    if epoch is not None:
        best = development(summary).get(int(epoch))
        learned = learning_lines(summary)
        if learned and not learned[0].startswith("learned") and best is not None:
            return f"did not learn: {percent(best, 0)}"
        return f"epoch {figure(epoch)}" + (f", dev {percent(best, 0)}" if best is not None else "")
    if steps is not None:
        return f"{figure(steps)} steps"
    frozen = summary.get("frozen")
    if isinstance(frozen, str):
        return f"frozen {one_line(frozen, 64)[:12]}"
    return f"n = {figure(n)}" if n else ""


def learning_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return whether a training learned, and likely causes where it did not; [] of a run that does not say."""
    try:
        stored = TrainingOutcome.from_json(summary["outcome"])
    except (KeyError, TypeError, ValueError):
        return []
    return [stored.text, *(f"likely cause: {one_line(cause, 300)}" for cause in stored.causes)]


def development(summary: Mapping[str, Any]) -> dict[int, float]:
    """Return a training's mean development score (0 to 1) by epoch; {} of a run that has none."""
    stored = summary.get("dev")
    if not isinstance(stored, dict):
        return {}
    scores = {int(epoch): number(mean) for epoch, mean in stored.items() if str(epoch).isdigit()}
    return {epoch: mean for epoch, mean in sorted(scores.items()) if mean is not None}


def development_line(summary: Mapping[str, Any]) -> str:
    """`development score: epoch 1 2.1 %, epoch 2 45.8 % (chosen), n = 96`; "" for none."""
    scores, chosen = development(summary), number(summary.get("epoch"))
    if not scores:
        return ""
    parts = [f"epoch {epoch} {percent(mean)}{' (chosen)' if epoch == chosen else ''}" for epoch, mean in scores.items()]
    n = number(summary.get("dev_n"))
    return f"development score: {', '.join(parts)}" + (f", n = {figure(n)}" if n else "")
