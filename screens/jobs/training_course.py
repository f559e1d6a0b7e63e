"""How a training, an evaluation or a sweep goes, in a few lines: development scores, running scores, cells, a stall."""

from __future__ import annotations

from textual.content import Content

from vlmconsole.desks.queue import QueueRow
from vlmconsole.runs.live_view import CellProgress, Curve, RunState, Tally
from vlmconsole.runs.pace import Progress
from vlmconsole.screens.theme import painted
from vlmconsole.text.numbers import UNKNOWN, figure, percent
from vlmconsole.text.plain import one_line
from vlmconsole.text.signs import CAUTION, sign_of
from vlmconsole.text.times import duration

Piece = Content | str | tuple[str, str]
#: Curves that one looks at first, in this order; then the others as the job told them.
FIRST = ("loss", "reward mean", "reward spread", "grad norm", "learning rate", "zero advantage")
DEVELOPMENT = {
    "development all-correct": "all-correct",
    "development mean reward": "reward",
    "validation reward (not a baseline)": "reward",
}
PASSES = 6  # development passes told, the newest
CELLS = 8  # of a sweep, the newest
SILENT = 60.0  # seconds without progress that are nothing yet
TIMES = 10.0  # how many times a usual step without progress is a stall


def in_order(curves: tuple[Curve, ...]) -> list[Curve]:
    """Return the curves, those first that tell most of a training."""
    rank = {name: place for place, name in enumerate(FIRST)}
    return sorted(curves, key=lambda curve: rank.get(curve.name, len(FIRST)))


def course(row: QueueRow, state: RunState, now: float) -> Content:
    """Return what there is of it, line by line; empty for a job of another kind. `now` is wall time, seconds."""
    lines = [stall(row, state.progress or row.progress, now)]
    lines += [
        *_development(state),
        _pointless(state),
        *_scores(state.tallies, row.job.state == "done"),
        *_cells(row, state),
    ]
    return Content("\n").join([line for line in lines if line])


def stall(row: QueueRow, progress: Progress | None, now: float) -> Content:
    """Return a notice when a running job has not moved for much longer than one of its steps took."""
    if row.job.state != "running" or row.job.serves or row.job.kind == "flow":
        return Content("")
    since = progress.t if progress is not None else row.job.started
    if since is None:
        return Content("")
    usual = 1 / progress.rate if progress is not None and progress.rate else None
    still = now - since
    if still < max(SILENT, TIMES * usual if usual else 0.0):
        return Content("")
    pieces: list[Piece] = [(f"! no progress for {duration(still)}", "$warning")]
    if usual:
        unit = one_line(progress.unit, 20) if progress is not None else "step"
        pieces.append((f" (usually {usual:.2g} s per {unit.removesuffix('s')})", "$muted"))
    limit = row.job.options.get("no_progress_s")
    if limit:
        pieces.append((f" · stops at {duration(float(limit))}", "$muted"))
    return Content.assemble(*pieces)


def _development(state: RunState) -> list[Content]:
    """Scores on pictures that choose an epoch: under a heading that says what they are not, a line for each pass."""
    curves = [curve for name in DEVELOPMENT if (curve := state.curve(name)) is not None]
    if not curves:
        return []
    epochs = {rollout.step: rollout.epoch for rollout in state.rollouts if rollout.epoch is not None}
    steps = sorted({step for curve in curves for step, _ in curve.points})[-PASSES:]
    lines = [Content.assemble(("dev set · ", "$muted"), ("not a baseline", "$warning"))]
    for step in steps:
        at = f"epoch {epochs[step]:g}" if step in epochs else f"step {step:g}"
        if step == 0:
            at = "at the start"
        parts = []
        for curve in curves:
            value = next((value for x, value in reversed(curve.points) if x == step), None)
            if value is not None:
                parts.append(f"{DEVELOPMENT[curve.name]} {value:.1f} %" if curve.unit == "%" else f"reward {value:.3f}")
        lines.append(Content.assemble((f"  {at:<9} ", "$muted"), "   ".join(parts)))
    return lines


def _pointless(state: RunState) -> Content:
    """How many groups taught nothing, because all their answers earned the same."""
    curve = state.curve("zero advantage")
    if curve is None or not curve.points:
        return Content("")
    share = sum(value for _, value in curve.points) / len(curve.points)
    recent = f"{percent(curve.last, 0)} of groups in the last step"
    return Content.assemble(("zero advantage  ", "$muted"), recent, (f", {percent(share, 0)} overall", "$muted"))


def _scores(tallies: tuple[Tally, ...], whole: bool) -> list[Content]:
    """The score so far, or as a whole, side by side, and below it group by group. Not the verdict."""
    if not tallies:
        return []
    sides = [side for side in ("before", "after") if any(tally.side == side for tally in tallies)]
    groups = list(dict.fromkeys(tally.group for tally in tallies))
    wide = max(len(title := "all-correct"), *(len(one_line(group, 14)) for group in groups))
    head = Content(f"{title:<{wide}}" + "".join(f"{side:>17}" for side in sides)).stylize("$faint")
    lines, total = [head], "all" if whole else "so far"
    for group in [None, *groups] if len(groups) > 1 else [None]:
        pieces: list[Piece] = [(f"{one_line(group, 14) if group else total:<{wide}}", "" if group else "bold")]
        for side in sides:
            some = [tally for tally in tallies if tally.side == side and group in (None, tally.group)]
            n, right, failed = (sum(getattr(tally, key) for tally in some) for key in ("n", "right", "failed"))
            text = f"{percent(right / n)} of {n}" if n else "–"
            pieces.append((f"{text:>17}", "" if group else "bold"))
            pieces.append((f" {failed} failed", "$error") if failed else "")
        lines.append(Content.assemble(*pieces))
    return lines


def _cells(row: QueueRow, state: RunState) -> list[Content]:
    """The cells of a sweep that have finished, the newest below, and the one it is at."""
    if not state.cells:
        return [Content.assemble(("now  ", "$muted"), one_line(state.now, 80))] if state.now and _runs(row) else []
    newest = state.cells[-CELLS:]
    wide = max(len(one_line(cell.name, 24)) for cell in newest)
    lines = [Content(f"  {'cell':<{wide}}  {'TTFT p50':>9} {'p95':>8}  {'tok/s':>7}").stylize("$faint")]
    lines += [_cell(cell, wide) for cell in newest]
    rest = len(state.cells) - len(newest)
    if rest:
        lines.append(Content(f"  {rest} earlier").stylize("$faint"))
    if state.now and _runs(row):
        lines.append(Content.assemble(("● ", "$accent"), one_line(state.now, 80)))
    return lines


def _runs(row: QueueRow) -> bool:
    return row.job.state == "running"


def _cell(cell: CellProgress, wide: int) -> Content:
    mark = painted(sign_of(cell.state, CAUTION))
    name = f" {one_line(cell.name, 24):<{wide}}"
    if cell.ttft_p50 is None and cell.throughput is None:
        return Content.assemble(mark, name, (f"  {one_line(cell.why or cell.state, 120)}", "$muted"))
    spread = (cell.ttft_p50, cell.ttft_p95)
    p50, p95 = (UNKNOWN if value is None else f"{figure(value)} s" for value in spread)
    speed = figure(cell.throughput)
    state = "" if cell.state == "valid" else f"  {one_line(cell.state, 20)}: {one_line(cell.why, 80)}"
    return Content.assemble(mark, name, f"  {p50:>9} {p95:>8}  {speed:>7}", (state, "$warning"))
