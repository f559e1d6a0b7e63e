"""A judged gate's figures as people read them: the same on the command line, on the screen and in reports."""

from __future__ import annotations

from typing import Any

from vlmconsole.data.example import truth_text
from vlmconsole.gates.measures import Measures
from vlmconsole.gates.verdict import Judged
from vlmconsole.runs.titles import title
from vlmconsole.scoring.answer import CountAnswer, parse_counts
from vlmconsole.text.numbers import decimal, percent, signed
from vlmconsole.text.plain import one_line

COLUMNS = ("before", "after", "measured", "margin", "interval")


def figures(judged: Judged) -> dict[str, str]:
    """Before, after, measured, margin and interval; dashes when there is nothing to say."""
    if judged.measured is None or judged.before is None or judged.after is None or judged.margin is None:
        return dict.fromkeys(COLUMNS, "–")
    metric = judged.gate.definition
    low, high = judged.interval or (0.0, 0.0)
    return {
        "before": metric.side_text(judged.before),
        "after": metric.side_text(judged.after),
        "measured": metric.value_text(judged.measured),
        "margin": metric.margin_text(judged.margin),
        # The interval is of the score's difference: beside another figure it would be misread.
        "interval": f"{signed(low)} … {signed(high)}" if metric.of_partial else "",
    }


def group_figures(measures: Measures, confidence: float) -> list[tuple[str, str]]:
    """Return everything measured of one group, as (what, figure): both sides, the difference, the flips, what
    changed.
    """

    def sides(pair: tuple[object, object]) -> str:
        return " → ".join(str(value) for value in pair)

    first, second = measures.all_correct
    interval, flips = measures.interval, measures.flips
    rows = [
        ("images", str(measures.n)),
        (
            title("all_correct"),
            sides((percent(float(first)), percent(float(second)))),
        ),
        (title("partial"), sides((f"{float(measures.partial[0]):.4f}", f"{float(measures.partial[1]):.4f}"))),
        ("difference", signed(interval.difference)),
        (f"{decimal(confidence * 100)} % interval", f"{signed(interval.low)} … {signed(interval.high)}"),
        ("valid answers", sides(measures.valid)),
        ("won, lost", f"{flips.wins}, {flips.losses}"),
        ("right, wrong both times", f"{flips.both_right}, {flips.both_wrong}"),
        (title("mcnemar_p"), f"{flips.p:.3g} (exact)"),
    ]
    if measures.sight is not None:
        gain = measures.sight.interval
        rows.append(("score without images", f"{float(measures.sight.score):.4f}"))
        rows.append((title("sight_gain"), f"{signed(gain.difference)} ({signed(gain.low)} … {signed(gain.high)})"))
    return [*rows, ("changed, losses first", ", ".join(measures.changed) or "none")]


def short_answer(text: Any) -> str:
    """Return a counting answer in the format as `3/2`, a list of human answers by its first, anything else as one
    line.
    """
    if text is None:
        return "no answer"
    if isinstance(text, list | tuple):
        text = text[0] if text else ""
    if not isinstance(text, str):
        return one_line(truth_text(text), 60)
    counts = parse_counts(text)
    return f"{counts.red_circles}/{counts.blue_squares}" if isinstance(counts, CountAnswer) else one_line(text, 60)
