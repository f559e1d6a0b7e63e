"""Our own requests as the client saw them: the chat's answers, the running jobs' events, and what a caller feeds in."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from vlmconsole.engines.metrics import Scrape
from vlmconsole.gauges.deltas import LONG, SHORT, Window
from vlmconsole.gauges.feed import Finished, RequestFeed
from vlmconsole.gauges.figures import Batch, Figure, Mark, SourceError
from vlmconsole.gauges.followed import ChatAnswers, MeasuredAnswer, RunningJobs
from vlmconsole.text.counts import many


class OwnRequests:
    """The source `own`: what our own clients saw, whichever process they run in.

    The figures are of one subject at a time, and carry its name: the run that measures, else the chat's answers of
    `server` (a profile's name; "" for answers of any server). When the subject changes, all of them begin anew.
    """

    name = "own"
    keys = ("own.ttft", "own.tpot", "own.throughput", "own.in_flight", "own.lag")
    slow = 0.0

    def __init__(
        self,
        runs: Path,
        chats: Path,
        feed: RequestFeed | None = None,
        *,
        server: str = "",
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._feed = feed or RequestFeed()
        self._chats = ChatAnswers(chats, server)
        self._jobs = RunningJobs(runs)
        self._server = self._subject = server
        self._clock, self._wall = clock, wall
        self._tokens = 0  # of all answers that ended since the first look
        self._window = Window(LONG)

    def past(self) -> list[Batch]:
        """Return the chat of the last ten minutes, a batch an answer: who looks at the gauges after asking wants to
        see it.
        """
        try:
            answers = self._chats.past(self._wall())
        except sqlite3.Error:  # the first reading says so
            self._chats.close()
            return []
        readings = [(answer.at, self._per_request([answer], "")) for answer in answers]
        return [Batch(self.name, at, self._labelled(figures)) for at, figures in readings if figures]

    def read(self) -> Batch:
        now, tick = self._wall(), self._clock()
        finished, in_flight = self._feed.drain()
        note = ""
        try:
            answers, streaming = self._chats.read(now)
            finished, in_flight = finished + answers, in_flight + streaming
        except sqlite3.Error as error:
            self._chats.close()
            note = f"cannot read the chat's answers: {error}"
        try:
            measured, marks = self._jobs.read(tick)
            job = self._jobs.job()
        except OSError as error:
            raise SourceError(f"cannot read the run folders: {error.strerror or error}") from None
        lag = Figure(None, note="no benchmark running")
        if measured is not None:
            finished, note = measured.finished, self._beside(measured, len(finished))
            in_flight = int(measured.gauges.get("in_flight", 0.0))
            if "lag" in measured.gauges:
                lag = Figure(measured.gauges["lag"], note="p99, client of the run")
        figures: dict[str, Figure] = {}
        if (subject := measured.run if measured is not None else self._server) != self._subject:
            marks = [*marks, Mark(now, f"client figures: {subject or 'all servers'}")]
            figures = {key: Figure(None, note="no request yet") for key in ("own.ttft", "own.tpot")}
            self._subject, self._tokens = subject, 0
            self._window.clear()
        figures |= self._per_request(finished, note)
        figures["own.throughput"] = self._throughput(finished, tick, in_flight)
        figures["own.in_flight"] = Figure(in_flight, note=note)
        figures["own.lag"] = lag
        return Batch(self.name, now, self._labelled(figures), tuple(marks), job=job)

    def _labelled(self, figures: dict[str, Figure]) -> dict[str, Figure]:
        return {key: replace(figure, subject=self._subject) for key, figure in figures.items()}

    @staticmethod
    def _beside(measured: MeasuredAnswer, chat: int) -> str:
        """What ended meanwhile and is not of the run that is measured."""
        left_out = [many(chat, "chat answer")] if chat else []
        left_out += [many(measured.others, "other run")] if measured.others else []
        return f"not counted here: {' and '.join(left_out)}" if left_out else ""

    def _per_request(self, finished: list[Finished], trouble: str) -> dict[str, Figure]:
        figures = {}
        for figure, values in (
            ("own.ttft", [request.ttft_s for request in finished]),
            ("own.tpot", [request.tpot_s for request in finished]),
        ):
            samples = tuple(float(value) for value in values if value is not None)
            if samples:
                figures[figure] = Figure(samples[-1], samples=samples, note=trouble)
        return figures

    def _throughput(self, finished: list[Finished], tick: float, in_flight: float) -> Figure:
        """Growth of a counter over the time between two looks, as the server's: looks are never just a second apart.

        While requests are in flight and none has ended in that time, it is unknown, not 0.
        """
        self._tokens += sum(request.output_tokens or 0 for request in finished)
        self._window.push(tick, Scrape(counters={"output_tokens": float(self._tokens)}))
        now, mean = self._window.counted("output_tokens", SHORT), self._window.counted("output_tokens", LONG)
        if now is None or mean is None:
            return Figure(None, note="needs two readings")
        if not now[0] and in_flight:
            return Figure(None, note="tokens are counted when an answer ends")
        note = f"last {now[1]:.0f} s; {mean[1]:.0f} s mean {mean[0] / mean[1]:.1f} tok/s"
        note += "; tokens are counted when an answer ends"
        unknown = sum(1 for request in finished if request.output_tokens is None)
        return Figure(
            now[0] / now[1], note=note + (f"; {many(unknown, 'answer')} without a token count" if unknown else "")
        )

    def close(self) -> None:
        self._chats.close()
