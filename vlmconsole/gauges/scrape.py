"""A server's gauges: its metrics scraped once a second, made into figures that say how old and how sure they are."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from vlmconsole.engines.metrics import FinishedRequest, MetricsError, MetricTable, Scrape
from vlmconsole.engines.profile import ServerProfile
from vlmconsole.engines.registry import engines, find_engine
from vlmconsole.gauges.deltas import LONG, SHORT, Quantile, Window, quantile
from vlmconsole.gauges.fetch import Fetcher, NotThere
from vlmconsole.gauges.figures import Batch, Figure, Mark, SourceError
from vlmconsole.gauges.loads import Load, read_loads

KEYS = ("ttft", "queue_time", "tpot", "throughput", "running", "queued", "kv", "hit_rate")
RETRY_PATH = 60.0  # seconds before a path that was not there is tried again
SETTLED = 5.0  # seconds that a counter of ended requests is watched before its growth is a rate
STALE_AFTER = 2.5  # seconds without a write, while something ran
PATH = "/metrics"  # where a server of no known engine may have them
DECODED = "tokens are counted as they are decoded"  # by the counter `decode_tokens`, where an engine has it


class ServerMetrics:
    """The source `server` of one base URL. A generic server's engine is found out by the metrics' names."""

    name = "server"
    keys = tuple(f"server.{figure}" for figure in KEYS)
    slow = 0.0

    def __init__(
        self,
        base_url: str,
        engine: str,
        *,
        fetch: Fetcher | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._fetch = fetch or Fetcher(base_url)
        self._table = find_engine(engine).metrics
        self._clock, self._wall = clock, wall
        self._window = Window(LONG)
        self._not_before: dict[str, float] = {}
        self._written: tuple[tuple[float, ...], float] | None = None  # gauges, and when they last changed
        self._ran_since = False
        self._seen_request = -math.inf
        self._limit: float | None = None
        self._running = 0.0  # requests that run, by the newest scrape

    @classmethod
    def of(cls, profile: ServerProfile) -> ServerMetrics:
        """Of a profile's server, with its key and only while its port is its holder's. Raises SourceError."""
        return cls(profile.base_url, profile.engine, fetch=Fetcher.of(profile))

    def close(self) -> None:
        self._fetch.close()

    def read(self) -> Batch:
        """Return one scrape as figures. Raises SourceError; the window of deltas survives a scrape that failed."""
        load = self._load()
        try:
            text = self._path(self._table.path if self._table else PATH)
        except NotThere:
            if load is None:
                lacking = self._table.lacking if self._table else ""
                raise SourceError(
                    f"{self._fetch.base_url}: no {PATH} endpoint{f' ({lacking})' if lacking else ''}"
                ) from None
            return self._batch(self._of_load(load, f"no {PATH}: start the server with --enable-metrics"))
        table, scrape = self._scrape(text)
        flushed = self._window.fell("cached_tokens", scrape)
        marks = self._push(scrape)
        if flushed and not marks:
            marks = (Mark(self._wall(), "prefix cache flushed"),)
        if marks:
            self._seen_request = -math.inf
        figures = self._counted(table)
        age = self._staleness(table, scrape)
        stale = age > STALE_AFTER
        note = f"{table.stale_why}; unchanged for {age:.0f} s while requests ran" if stale else ""
        for figure in ("running", "queued", "kv"):
            if figure in scrape.gauges:
                figures[f"server.{figure}"] = Figure(scrape.gauges[figure], age_s=age, stale=stale, note=note)
        if load is not None:
            figures |= self._of_load(load)
        pool = _pool(scrape)
        if "server.kv" in figures and pool:
            figures["server.kv"] = replace(figures["server.kv"], note="; ".join(filter(None, (pool, note))))
        # Kept for prompts to come and given up when needed: neither in use nor free.
        if (capacity := scrape.gauges.get("kv_capacity")) and (cached := scrape.gauges.get("kv_cached")) is not None:
            figures["server.kv_cached"] = Figure(min(1.0, cached / capacity), age_s=age, stale=stale, note=pool)
        figures |= {f"server.{figure}": Figure(None, note=why) for figure, why in scrape.absent.items()}
        return self._batch(figures | self._each(scrape.recent), marks)

    def _scrape(self, text: str) -> tuple[MetricTable, Scrape]:
        known = (other.metrics for other in engines())
        table = self._table or next((table for table in known if table is not None and table.recognises(text)), None)
        if table is None:
            raise SourceError("unknown metric names: not from a known engine")
        try:
            return table, table.read(text)
        except MetricsError as error:
            raise SourceError(error.message) from None

    def _load(self) -> Load | None:
        """The load report under whichever path this version has; None when it has none."""
        for path in self._table.load_paths if self._table else ():
            try:
                return read_loads(self._path(path))
            except NotThere:
                continue
        return None

    def _of_load(self, load: Load, lacking: str = "") -> dict[str, Figure]:
        self._limit = load.limit or self._limit
        # Nothing runs: then an old report is a true one.
        stale = load.age_s > STALE_AFTER and load.running + load.queued > 0
        note = "the scheduler's report is stale" if stale else ""
        figures = {
            "server.running": Figure(load.running, total=self._limit, age_s=load.age_s, stale=stale, note=note),
            "server.queued": Figure(load.queued, age_s=load.age_s, stale=stale, note=note),
        }
        if load.kv is not None:
            of = f"of {load.kv_capacity:,.0f} tokens" if load.kv_capacity else ""
            figures["server.kv"] = Figure(load.kv, age_s=load.age_s, stale=stale, note=of)
        if lacking:
            figures |= {key: Figure(None, note=lacking) for key in self.keys if key not in figures}
        return figures

    def _staleness(self, table: MetricTable, scrape: Scrape) -> float:
        """Seconds since the gauges that are written together last moved, 0 while nothing ran in between."""
        group = tuple(scrape.gauges.get(figure, -1.0) for figure in table.written_together)
        now = self._clock()
        if not group or self._written is None or self._written[0] != group:
            self._written, self._ran_since = (group, now), False
            return 0.0
        self._ran_since = self._ran_since or self._window.moved()
        return now - self._written[1] if self._ran_since else 0.0

    def _each(self, recent: tuple[FinishedRequest, ...] | None) -> dict[str, Figure]:
        """Figures of the requests that ended since the last scrape; exact where the server lists them one by one."""
        if recent is None:
            return {}
        first = self._seen_request == -math.inf
        new = [request for request in recent if request.ended > self._seen_request]
        if recent:
            self._seen_request = max(self._seen_request, recent[-1].ended)
        missed = self._window.counted("requests", 0.5)
        if first:
            new = []  # those ended before we looked: nobody knows when
        lost = int(missed[0]) - len(new) if missed and not first else 0
        note = f"{lost} requests in between were not listed (the server keeps 32)" if lost > 0 else ""
        figures = {}
        for figure, values in (
            ("ttft", [request.ttft_s for request in new]),
            ("tpot", [request.tpot_s for request in new]),
        ):
            samples = tuple(value for value in values if value is not None)
            if samples:
                figures[f"server.{figure}"] = Figure(samples[-1], samples=samples, note=note)
        return figures

    def _path(self, path: str) -> str:
        """The text at a path; one that was not there is left alone for a while."""
        if self._clock() < self._not_before.get(path, -math.inf):
            raise NotThere(f"no {path} endpoint")
        try:
            return self._fetch.get(path)
        except NotThere:
            self._not_before[path] = self._clock() + RETRY_PATH
            raise

    def _push(self, scrape: Scrape) -> tuple[Mark, ...]:
        self._running = scrape.gauges.get("running", 0.0)
        if not self._window.push(self._clock(), scrape):
            return ()
        self._written = None
        self._not_before.clear()  # another version may have come up
        return (Mark(self._wall(), "server restarted"),)

    def _counted(self, table: MetricTable) -> dict[str, Figure]:
        """Everything that comes from counters and histograms: throughput, hit rate, server-side times."""
        figures = {}
        figures["server.throughput"] = self._throughput(table)
        figures["server.hit_rate"] = self._hit_rate()
        for figure in ("ttft", "tpot", "queue_time"):
            quantile = self._from_buckets(figure)
            if quantile is not None:
                figures[f"server.{figure}"] = quantile
        return figures

    def _throughput(self, table: MetricTable) -> Figure:
        """Output tokens a second, from the counter that moves as they are made where the engine has one.

        A counter of ended requests says nothing over a stretch in which none could end: its figure waits.
        """
        decoded = self._window.counted("decode_tokens", SHORT)
        counter, how = ("decode_tokens", DECODED) if decoded is not None else ("output_tokens", table.counted)
        now, mean = self._window.counted(counter, SHORT), self._window.counted(counter, LONG)
        if now is None or mean is None:
            return Figure(None, note="needs two readings")
        if counter == "output_tokens" and table.at_end and now[1] < SETTLED and (now[0] or self._running):
            return Figure(None, note=f"needs {SETTLED:.0f} s of readings: {how}")
        note = f"last {now[1]:.0f} s; {mean[1]:.0f} s mean {mean[0] / mean[1]:.1f} tok/s; {how}"
        return Figure(now[0] / now[1], note=note)

    def _hit_rate(self) -> Figure:
        """Cached tokens of all prompt tokens, from the growth of both counters: the gauge is the last batch only."""
        prompt, cached = self._window.counted("prompt_tokens"), self._window.counted("cached_tokens")
        if not self._window.enough:
            return Figure(None, note="needs two readings")
        if prompt is None or prompt[0] <= 0:
            return Figure(None, note=f"no prompt in the last {self._window.span:.0f} s")
        if cached is None:
            return Figure(None, note="no cached tokens reported (no hit, or not counted)")
        share = min(1.0, cached[0] / prompt[0])
        return Figure(
            share, note=f"{cached[0]:,.0f} of {prompt[0]:,.0f} prompt tokens, last {prompt[1]:.0f} s, from counters"
        )

    def _from_buckets(self, figure: str) -> Figure | None:
        """Now: the mean of the newest requests (exact). p50, p95: interpolated inside the server's buckets."""
        past = self._window.observed(figure)
        if past is None:
            return None
        middle, high = quantile(past, 0.5), quantile(past, 0.95)
        if middle is None or high is None:
            return Figure(None, note=f"no request in the last {self._window.span:.0f} s")
        newest = self._window.observed(figure, 0.5)
        if newest is None or newest.count <= 0:
            return None  # the board keeps the last figure, which grows older
        value = newest.sum / newest.count
        stretch = f"last {self._window.span:.0f} s"
        note = f"p50 and p95 of {past.count:.0f}, {stretch}, interpolated in buckets: p95 in {_bucket(high)}"
        return Figure(value, p50=middle.value, p95=high.value, samples=(value,), note=note)

    def _batch(self, figures: dict[str, Figure], marks: tuple[Mark, ...] = ()) -> Batch:
        return Batch(self.name, self._wall(), figures, marks)


def _bucket(quantile: Quantile) -> str:
    return f"{quantile.low:g}–{quantile.high:g} s" if math.isfinite(quantile.high) else f"> {quantile.low:g} s"


def _pool(scrape: Scrape) -> str:
    """What the KV pool's tokens are: in use, kept for prompts to come, free; "" where the server does not tell."""
    tokens = {name: scrape.gauges.get(f"kv_{name}") for name in ("used", "cached", "free")}
    parts = [f"{name} {value:,.0f}" for name, value in tokens.items() if value is not None]
    capacity = scrape.gauges.get("kv_capacity")
    of = f"of {capacity:,.0f} tokens" if capacity is not None else "tokens" if parts else ""
    return " ".join(filter(None, (" · ".join(parts), of)))
