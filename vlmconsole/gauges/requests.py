"""Our own requests as the client saw them: the chat's answers, the running jobs' events, and what a caller feeds in."""

from __future__ import annotations

import sqlite3
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from vlmconsole.gauges.feed import Finished, RequestFeed
from vlmconsole.gauges.figures import Batch, Figure, SourceError
from vlmconsole.gauges.followed import ChatAnswers, RunningJobs

SHORT, LONG = 10.0, 60.0  # seconds that throughput looks back


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
        self._tokens: deque[tuple[float, int]] = deque()
        self._began: float | None = None

    def read(self) -> Batch:
        now, tick = self._wall(), self._clock()
        self._began = tick if self._began is None else self._began
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
        self._tokens.extend((tick, request.output_tokens) for request in finished if request.output_tokens)
        while self._tokens and self._tokens[0][0] < tick - LONG:
            self._tokens.popleft()
        watched = tick - (self._began if self._began is not None else tick)
        if watched <= 0:
            return Figure(None, note="needs two readings")
        unknown = sum(1 for request in finished if request.output_tokens is None)
        short, long = min(SHORT, watched), min(LONG, watched)
        now = sum(tokens for at, tokens in self._tokens if at > tick - short) / short
        mean = sum(tokens for _, tokens in self._tokens) / long
        note = f"last {short:.0f} s; {long:.0f} s mean {mean:.1f} tok/s; tokens are counted when an answer ends"
        return Figure(now, note=note + (f"; {unknown} answers told no token count" if unknown else ""))

    def close(self) -> None:
        self._chats.close()
