"""One job in full: how it goes, why it failed, its curves, its worker's load, its notes and its files."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message

from vlmconsole.desks.queue import Particulars, QueueRow
from vlmconsole.queue.view import waits
from vlmconsole.runs.live_view import Curve, RunState
from vlmconsole.runs.logfile import LogPage, shown
from vlmconsole.runs.pace import SHOWN, Progress
from vlmconsole.screens.jobs.rows import devices, job_name, state_sign
from vlmconsole.screens.jobs.training_course import course, in_order, stall
from vlmconsole.screens.keys import key_of
from vlmconsole.screens.widgets.lines import LineView
from vlmconsole.screens.widgets.said import Said
from vlmconsole.text.bars import progress_bar, sparkline
from vlmconsole.text.counts import plain_name
from vlmconsole.text.plain import inert, one_line
from vlmconsole.text.signs import sign_of
from vlmconsole.text.sizes import MIB, size
from vlmconsole.text.times import clock, duration
from vlmconsole.text.units import in_unit

LAST_LINES = 8  # of the log, under the cause of a failure
LAST_NOTES = 6
Piece = Content | str | tuple[str, str]


class Curves(LineView):
    """A line for each metric: its name, its last value, its course. Enter opens it large."""

    class Opened(Message):
        pass

    def __init__(self) -> None:
        super().__init__(id="job-curves")
        self.curves: tuple[Curve, ...] = ()

    def show(self, curves: tuple[Curve, ...]) -> None:
        before, self.curves = self.curves, curves
        if curves and not 0 <= self.cursor < len(curves):
            self.cursor = 0
        changed = [y for y, curve in enumerate(curves) if y >= len(before) or before[y] != curve]
        self.display = bool(curves)
        if len(curves) != self.count:
            self.sized(len(curves))
        elif changed:
            self.sized(len(curves), changed=range(changed[0], changed[-1] + 1))

    def line(self, y: int, width: int) -> Content:
        curve = self.curves[y]
        longest = max(len(_name(other)) for other in self.curves)
        name = _name(curve)
        last = _last(curve)
        widest = max(len(_last(other)) for other in self.curves)
        here = "▸" if y == self.cursor and self.has_focus else " "
        room = max(4, width - longest - widest - 5)
        course = sparkline([value for _, value in curve.points], min(room, 48))
        return Content.assemble(
            (here, "$accent"), (name.ljust(longest), "$muted"), "  ", last.rjust(widest), "  ", (course, "$accent")
        )  # fmt: skip

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()


def _name(curve: Curve) -> str:
    """A curve's name, short enough to leave its course some room; its large plot has it whole."""
    return one_line(plain_name(curve.name.removesuffix(" (not a baseline)"), curve.unit), 23)


def _last(curve: Curve) -> str:
    unit = one_line(curve.unit, 20)
    return in_unit(curve.last, unit if len(unit) <= 5 else "")


class JobDetail(VerticalScroll):
    """Shows one job, and only what there is of it."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.curves = Curves()
        names = ("job-head", "job-cause", "job-tail", "job-course", "job-live", "job-more")
        self._parts = {name: Said(id=name) for name in names}

    def compose(self) -> ComposeResult:
        *before, last = self._parts.values()
        yield from (*before, self.curves, last)

    def on_mount(self) -> None:
        self.show(None, None, RunState(), None, 0.0)

    def show(
        self, row: QueueRow | None, more: Particulars | None, state: RunState, page: LogPage | None, now: float
    ) -> None:
        """Put a job there. `now` is wall time; `told` and `page` belong to the job's present run."""
        if row is None:
            self._put("job-head", Content("Select a job to see its details.").stylize("$faint"))
            for name in ("job-cause", "job-tail", "job-course", "job-live", "job-more"):
                self._put(name, Content(""))
            self.curves.show(())
            return
        self._put("job-head", _head(row, state, now))
        failed = row.job.state in ("failed", "lost")
        self._put("job-cause", _cause(row) if failed or row.job.state == "queued" else Content(""))
        self._put("job-tail", _tail(page) if failed else Content(""))
        self._put("job-course", how_far(row, state))
        self._put("job-live", course(row, state, now))
        self.curves.show(all_curves(state))
        self._put("job-more", _more(row, more, state))

    def _put(self, name: str, text: Content) -> None:
        part = self._parts[name]
        part.set_class(bool(text), "-there")
        part.say(text)


def _head(row: QueueRow, state: RunState, now: float) -> Content:
    job = row.job
    attempt = f" · attempt {job.attempt}" if job.attempt > 1 else ""
    pieces: list[Piece] = [(f"{job.id} {job_name(job)}", "bold"), (attempt, "$muted")]
    if job.title and job.title != job.preset:
        pieces.append((f"\n{one_line(job.title, 200)}", "$muted"))
    pieces += ["\n", state_sign(job, row.verdict)]
    if row.verdict:
        pieces.append((f", verdict {row.verdict}", f"${sign_of(row.verdict).tone}"))
    if job.started:
        pieces.append(f" {duration((job.ended or now) - job.started)}")
    progress = row.progress or state.progress
    if job.state in ("running", "starting"):
        left = progress.left_said(now) if progress and not stall(row, progress, now) else ""
        if state.left_s is not None:  # a sweep counts its servers' starts in
            rest = state.left_s - (now - state.left_at)
            left = f"{duration(rest)} left" if rest >= SHOWN else ""
        pieces.append((f" · {left}" if left else "", "$muted"))
        pieces.append((f" · on {devices(job)}" if job.kind != "flow" else "", "$muted"))
        server = f" · uses server {one_line(job.server, 40)}" if job.server else ""
        pieces.append((server or (f" · serves {one_line(job.serves, 40)}" if job.serves else ""), "$muted"))
    elif job.ended:
        pieces.append((f" · ended {time.strftime('%H:%M, %-d %B', time.localtime(job.ended))}", "$muted"))
    return Content.assemble(*pieces)


def how_far(row: QueueRow, state: RunState) -> Content:
    """Return how far it is, or how far it came; of a job that is done nothing that looks unfinished."""
    progress = row.progress or state.progress
    if progress is None:
        return Content("")
    if row.job.state == "done" and progress.share is not None and progress.share < 1:
        return Content("")  # how far the last phase that told anything came says nothing of a job that is done
    pieces: list[Piece] = ["\n" if row.job.state in ("failed", "lost") else "", *_progress(progress)]
    rate = progress.rate
    if rate and row.job.state == "running":
        pieces.append((f" · {rate:.2g}/s" if rate >= 1 else f" · {1 / rate:.2g} s each", "$muted"))
    if progress.note and row.job.state != "done":  # the last word on the way there is no result
        pieces.append((f"\n{one_line(progress.note, 300)}", "$muted"))
    return Content.assemble(*pieces)


def _progress(progress: Progress) -> list[Piece]:
    if progress.share is None:
        return [one_line(progress.counted(), 80)]
    full, empty = progress_bar(progress.share, 8)
    counted = f" · {one_line(progress.counted(), 80)}"
    return [(full, "$accent"), (empty, "$faint"), f" {int(100 * progress.share)} %", (counted, "$muted")]


def _cause(row: QueueRow) -> Content:
    if row.job.state == "queued":
        word, space, rest = waits(row.why).partition(" ")
        keys: list[Piece] = []
        if row.blocker is not None:
            keys = [
                (f"\n{key_of('jobs.hand_over')}", "$accent"),
                " stops it for this job · ",
                (f"F6 {key_of('servers.stop')}", "$accent"),
                f" stops {one_line(row.blocker[1], 40)}",
            ]
        return Content.assemble((f"\n{word}{space}", "$muted"), inert(rest), *keys)
    return Content.assemble(("\n✗ ", "$error"), inert(row.why or row.job.state))


def _tail(page: LogPage | None) -> Content:
    """The end of the log under a failure's cause, where the log itself is out of sight."""
    if page is None:
        return Content("")
    lines = [text for text in map(shown, page.lines[-4 * LAST_LINES :]) if text.strip()][-LAST_LINES:]
    return Content.assemble(("\nLast log lines\n", "$faint"), ("\n".join(lines), "$muted")) if lines else Content("")


def all_curves(state: RunState) -> tuple[Curve, ...]:
    """Return the job's own curves, then its worker's load."""
    curves = in_order(state.curves)
    if state.cpu is not None:
        curves.append(replace(state.cpu, name="worker CPU"))
    if state.memory is not None:
        points = tuple((x, value / MIB) for x, value in state.memory.points)
        last = state.memory.last / MIB
        curves.append(replace(state.memory, name="worker memory", unit="MiB", points=points, last=last))
    return tuple(curves)


def _more(row: QueueRow, more: Particulars | None, state: RunState) -> Content:
    lines: list[Content] = []
    job = row.job
    if job.state not in ("failed", "lost", "queued") and row.why:
        lines += [Content(""), Content(inert(row.why)).stylize("$muted")]
    if job.note:
        lines += [Content(""), Content(one_line(job.note, 300)).stylize("$muted")]
    if state.notes:
        lines.append(Content(""))
        for note in state.notes[-LAST_NOTES:]:
            style = {"warning": "$warning", "error": "$error"}.get(note.level, "")
            sign = {"warning": "! ", "error": "✗ "}.get(note.level, "")
            at = f"{clock(note.t)} "
            lines.append(Content.assemble((at, "$faint"), (sign + one_line(note.text, 400), style)))
    if more is not None and more.job.id == job.id:
        lines += _relations(more)
    if state.bad:
        lines.append(Content(f"{state.bad} lines of events.jsonl are unreadable").stylize("$warning"))
    return Content("\n").join(lines)


def _relations(more: Particulars) -> list[Content]:
    lines: list[Content] = []
    job = more.job
    if more.steps:
        lines.append(Content(""))
        for step in more.steps:
            lines.append(
                Content.assemble((f"{step.id:>4}  ", "$muted"), one_line(f"{step.step} ", 40), state_sign(step))
            )
    order = []
    if job.after:
        order.append(
            "after " + ", ".join(f"{other}{'' if mode == 'ok' else ' (any end)'}" for other, mode in job.after)
        )
    if more.waiters:
        order.append("blocks " + ", ".join(map(str, more.waiters[:12])))
    if job.priority:
        order.append(f"priority {job.priority}")
    if order:
        lines += [Content(""), Content(" · ".join(order)).stylize("$muted")]
    if more.attempts:
        lines.append(Content(""))
        for old in more.attempts[-4:]:
            reason = f" · {one_line(old.reason, 200)}" if old.reason else ""
            lines.append(Content(f"attempt {old.number}: {old.state}{reason}").stylize("$muted"))
    if more.files:
        lines += [Content(""), Content.assemble(*_files(more))]
    return lines


def _files(more: Particulars) -> Sequence[Piece]:
    pieces: list[Piece] = [("files  ", "$muted")]
    for index, file in enumerate(more.files[:12]):
        pieces += [(" · ", "$faint") if index else "", one_line(file.name, 60), (f" {size(file.size)}", "$muted")]
    rest = len(more.files) - 12
    return [*pieces, (f" · {rest} more" if rest > 0 else "", "$faint")]
