"""A judged gate's figures as people read them: the same on the command line, on the screen and in reports."""

from __future__ import annotations

from vlmconsole.gates.verdict import Judged

MARKS = {"PASS": "✓", "FAIL": "✗", "CANNOT JUDGE": "?"}
COLUMNS = ("before", "after", "measured", "margin", "interval")


def figures(judged: Judged) -> dict[str, str]:
    """Before, after, measured, margin and interval; dashes when there is nothing to say."""
    if judged.measured is None or judged.before is None or judged.after is None or judged.margin is None:
        return dict.fromkeys(COLUMNS, "–")
    percent = judged.gate.metric == "all_correct"

    def share(value: float) -> str:
        return f"{value * 100:.1f} %" if percent else f"{value:.4f}"

    points = judged.gate.unit == "points"
    low, high = judged.interval or (0.0, 0.0)
    left = judged.margin * 100 if percent else judged.margin
    return {
        "before": share(judged.before),
        "after": share(judged.after),
        "measured": f"{judged.measured:.2f}" if points else share(judged.measured),
        "margin": f"{left:+.2f}" if points else f"{left:+.{1 if percent else 4}f}",
        # The interval is of the partial reward: beside an all-correct figure it would be misread.
        "interval": "" if percent else f"{low:+.4f} … {high:+.4f}",
    }
