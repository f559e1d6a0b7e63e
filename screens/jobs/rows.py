"""One line of the queue: number, job, state as sign and word, and then what matters most in that state."""

from __future__ import annotations

from dataclasses import dataclass

from textual.content import Content

from vlmconsole.desks.queue import QueueRow
from vlmconsole.devices.labels import device_words
from vlmconsole.queue.model import Job
from vlmconsole.queue.view import WAITING
from vlmconsole.screens.theme import painted
from vlmconsole.text.bars import progress_bar
from vlmconsole.text.counts import of_many
from vlmconsole.text.fitting import fitted, whole_words
from vlmconsole.text.plain import one_line
from vlmconsole.text.signs import sign_of
from vlmconsole.text.times import about, duration

STATE_WIDTH = 11  # "– cancelled"


def state_word(job: Job) -> str:
    """Return the state, with "stopping" for a job that was asked to."""
    return "stopping" if job.stop is not None and job.state in ("starting", "running") else job.state


def state_sign(job: Job, verdict: str = "") -> Content:
    """Sign and word; a done job whose gates did not pass has their sign."""
    word = state_word(job)
    own = sign_of(word)
    shown = sign_of(verdict, own) if word == "done" else own
    word_style = {"running": "", "starting": "", "done": "$muted"}.get(word, f"${own.tone}")
    return Content.assemble(painted(shown), " ", (word, word_style))


def job_name(job: Job, room: int = 80) -> str:
    """Return the preset; of a flow's step the step first, and the step alone where both do not fit in `room` cells."""
    if job.flow is not None:
        whole = one_line(f"↳ {job.step}: {job.preset}", 80)
        return whole if len(whole) <= room else one_line(f"↳ {job.step}", 80)
    return one_line(f"{job.preset} (flow)" if job.kind == "flow" else job.preset, 80)


@dataclass(frozen=True)
class Columns:
    """Widths of the columns for a table `width` cells wide."""

    width: int
    number: int = 3
    device: int = 5

    @property
    def job(self) -> int:
        return max(10, min(30, (self.width - self.number - STATE_WIDTH - 8) * 3 // 8))

    @property
    def rest(self) -> int:
        return max(8, self.width - self.number - self.job - STATE_WIDTH - 8)

    @property
    def bar(self) -> int:
        return max(4, min(16, self.rest - self.device - 16))

    def header(self) -> Content:
        name = f" {'#':>{self.number}}  {'job':<{self.job}}  {'state':<{STATE_WIDTH}}  "
        rest = f"{'progress':<{self.bar + 5}}  {'left':>6}  {'device':<{self.device}}"
        return Content((name + rest)[: self.width]).stylize("$faint")

    def row(self, row: QueueRow, now: float) -> Content:
        job = row.job
        return Content.assemble(
            " ",
            (f"{job.id:>{self.number}}", "$muted"),
            "  ",
            Content(job_name(job, self.job)).truncate(self.job, ellipsis=True, pad=True),
            "  ",
            state_sign(job, row.verdict).truncate(STATE_WIDTH, pad=True),
            "  ",
            self._rest(row, now).truncate(self.rest, ellipsis=True),
        )

    def _rest(self, row: QueueRow, now: float) -> Content:
        job = row.job
        if job.state in ("failed", "lost", "queued", "cancelled") or state_word(job) == "stopping":
            return Content(whole_words(one_line(row.why.removeprefix(WAITING), 300), self.rest)).stylize("$muted")
        if job.state == "done":
            took = duration(job.ended - job.started) if job.ended and job.started else ""
            ago = f"{about(max(1.0, now - job.ended))} ago" if job.ended and now - job.ended < 86400 else ""
            parts = [part for part in (f"took {took}" if took else "", ago) if part]
            if len(" · ".join([row.verdict, *parts])) > self.rest:
                parts = parts[:1]  # rather one of them whole than both cut
            when = Content(" · ".join(parts)).stylize("$muted")
            if not row.verdict:
                return when
            return Content.assemble((row.verdict, f"${sign_of(row.verdict).tone}"), (" · ", "$muted"), when)
        device = devices(job)
        if job.serves and row.progress is None:
            label = fitted(one_line(f"serves {job.serves}"), self.bar + 13)
            return Content.assemble((label, "$muted"), "  ", device)
        over = row.progress
        if job.kind == "flow" and over is not None and over.share is not None and over.total is not None:
            full, empty = progress_bar(over.share, self.bar)
            return Content.assemble(
                (full, "$accent"), (empty, "$faint"), f" {of_many(over.done, over.total, one_line(over.unit, 20))}"
            )
        return Content.assemble(self._progress(row, now), "  ", device)

    def _progress(self, row: QueueRow, now: float) -> Content:
        progress = row.progress
        if progress is None:
            return Content(" " * (self.bar + 13))
        left = progress.left(now)
        time_left = (duration(left) if left is not None else "").rjust(6)
        if progress.share is None:
            done = fitted(one_line(of_many(progress.done, None, progress.unit)), self.bar + 5)
            return Content.assemble(done, "  ", time_left)
        full, empty = progress_bar(progress.share, self.bar)
        return Content.assemble(
            (full, "$accent"), (empty, "$faint"), f" {int(100 * progress.share):>3}%", "  ", time_left
        )


def devices(job: Job) -> str:
    """Return what the job holds, or asks for."""
    return one_line(device_words(job.granted or job.devices, "–"), 40)
