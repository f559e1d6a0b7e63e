"""Our own requests as the client saw them: the chat's answers, the running jobs' events, and what a caller feeds in."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from vlmconsole.gauges.deltas import LONG, SHORT, Window
from vlmconsole.gauges.feed import Finished, RequestFeed
from vlmconsole.gauges.figures import Batch, Figure, SourceError
from vlmconsole.gauges.followed import ChatAnswers, RunningJobs
from vlmconsole.gauges.prometheus import Scrape
from vlmconsole.runs.words import many


class OwnRequests:
    """The source ``own``: what our own clients saw, whichever process they run in."""

    name = "own"
    keys = ("own.ttft", "own.tpot", "own.throughput", "own.in_flight", "own.lag")
    slow = 0.0

    def __init__(
        self,
        runs: Path,
        chats: Path,
        feed: RequestFeed | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._feed = feed or RequestFeed()
        self._chats = ChatAnswers(chats)
        self._jobs = RunningJobs(runs)
        self._clock, self._wall = clock, wall
        self._tokens = 0  # of all answers that ended since the first look
        self._window = Window(LONG)

    def past(self) -> list[Batch]:
        """The chat of the last ten minutes, a batch an answer: who looks at the gauges after asking wants to see it."""
        try:
            answers = self._chats.past(self._wall())
        except sqlite3.Error:  # the first reading says so
            self._chats.close()
            return []
        told = [(answer.at, self._per_request([answer], "")) for answer in answers]
        return [Batch(self.name, at, figures) for at, figures in told if figures]

    def read(self) -> Batch:
        now, tick = self._wall(), self._clock()
        finished, in_flight = self._feed.drain()
        chat_trouble = ""
        try:
            answers, streaming = self._chats.read(now)
            finished, in_flight = finished + answers, in_flight + streaming
        except sqlite3.Error as error:
            self._chats.close()
            chat_trouble = f"the chat's answers cannot be read: {error}"
        try:
            ended, gauges, marks = self._jobs.read(now, tick)
            job = self._jobs.job()
        except OSError as error:
            raise SourceError(f"the run folders cannot be read: {error.strerror or error}") from None
        finished += ended
        figures = self._per_request(finished, chat_trouble)
        figures["own.throughput"] = self._throughput(finished, tick)
        figures["own.in_flight"] = Figure(in_flight + gauges.get("in_flight", 0.0), note=chat_trouble)
        if "lag" in gauges:
            figures["own.lag"] = Figure(gauges["lag"], note="the job's own client, p99")
        else:
            figures["own.lag"] = Figure(None, note="no job measures now")
        return Batch(self.name, now, figures, tuple(marks), job=job)

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

    def _throughput(self, finished: list[Finished], tick: float) -> Figure:
        """Growth of a counter over the time between two looks, as the server's: looks are never just a second apart."""
        self._tokens += sum(request.output_tokens or 0 for request in finished)
        self._window.push(tick, Scrape(counters={"output_tokens": float(self._tokens)}))
        now, mean = self._window.counted("output_tokens", SHORT), self._window.counted("output_tokens", LONG)
        if now is None or mean is None:
            return Figure(None, note="needs two readings")
        note = f"last {now[1]:.0f} s; {mean[1]:.0f} s mean {mean[0] / mean[1]:.1f} tok/s"
        note += "; tokens are counted when an answer ends"
        unknown = sum(1 for request in finished if request.output_tokens is None)
        return Figure(
            now[0] / now[1], note=note + (f"; {many(unknown, 'answer')} told no token count" if unknown else "")
        )

    def close(self) -> None:
        self._chats.close()
