"""A server's metrics text → figures: an engine's table says which metric is which figure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from vlmconsole.errors import LabError
from vlmconsole.text.plain import beginning

Kind = Literal["counter", "histogram", "gauge"]

#: Labels that number replicas of one scheduler: tensor- and pipeline-parallel ranks report the same figure again.
REPLICA_LABELS = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "pid"})
_SUFFIXES = ("_bucket", "_sum", "_count")


class MetricsError(LabError):
    """Text that is not the metrics of the engine; the message says what it is instead."""


@dataclass(frozen=True)
class EngineMetric:
    """One figure's place in an engine's metrics.

    `names` are tried in order, the newest server's first. `together` says how several label sets become one figure:
    counts add up over data-parallel ranks, a share of a pool is the fullest rank's (a mean would hide the rank that
    blocks). `labels`: only samples that carry them.
    """

    names: tuple[str, ...]
    kind: Kind
    together: Literal["sum", "max"] = "sum"
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Histogram:
    """A cumulative histogram since the server's start. `buckets`: upper bound (seconds, last +inf) → count ≤ it."""

    buckets: dict[float, float]
    sum: float
    count: float


@dataclass(frozen=True)
class FinishedRequest:
    """One request as the server saw it: its end (server's wall clock), TTFT and time per token in seconds."""

    ended: float
    ttft_s: float | None
    tpot_s: float | None


@dataclass
class Scrape:
    """One reading of a server's metrics. A figure that the server does not report is absent, never zero.

    `absent`: figure → why this server has none. `recent`: finished requests, oldest first; None where it lists none.
    """

    counters: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    recent: tuple[FinishedRequest, ...] | None = None
    bad_lines: int = 0


@dataclass(frozen=True)
class MetricTable:
    """An engine's metrics: where they are, which is which figure, and what their figures mean.

    Figures: counters and histograms only grow; the rest are gauges of the moment.
    """

    engine: str
    """Prometheus's names begin with it and a colon."""
    figures: Mapping[str, EngineMetric]
    counted: str
    """When the token counters move: this decides over how long a window a rate means something."""
    at_end: bool = False
    """Whether `output_tokens` are those of requests that ended."""
    path: str = "/metrics"
    lacking: str = ""
    """What is said of a server that has no such path."""
    load_paths: tuple[str, ...] = ()
    """Paths of its load report, the newest server's first (see `gauges.loads`)."""
    written_together: tuple[str, ...] = ()
    """Gauges that are written at one time. When none of them moved while counters did, they were not written, and
    their figures are as old as their last change."""
    stale_why: str = ""

    def recognises(self, text: str) -> bool:
        """Return whether a text is this engine's, by the names in it."""
        return f"\n{self.engine}:" in text or text.startswith(f"{self.engine}:")

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(name for metric in self.figures.values() for name in metric.names)

    def read(self, text: str) -> Scrape:
        """Return the figures in a text. Lines of other metrics are never parsed: a real page has 800 of them.

        Raises MetricsError when not one known metric is in the text, saying what it is instead.
        """
        scrape = Scrape()
        samples: dict[str, list[Sample]] = {}
        for sample in _samples(_lines(text, f"{self.engine}:", self._names), scrape):
            if math.isfinite(sample.value):
                samples.setdefault(sample.name, []).append(sample)
        for figure, metric in self.figures.items():
            _put(scrape, figure, metric, samples)
        if not (scrape.counters or scrape.histograms or scrape.gauges):
            raise MetricsError(f"no {self.engine} metric is in the answer, which begins {beginning(text)}")
        return scrape


def _lines(text: str, prefix: str, names: frozenset[str]) -> list[str]:
    """The lines that speak of these names, which all begin with `prefix`, and the TYPE lines of their histograms."""
    kept = []
    type_prefix = f"# TYPE {prefix}"
    for line in text.split("\n"):
        if line.startswith(prefix):
            name = line.partition("{")[0].partition(" ")[0]
            if name not in names:
                name = next((name.removesuffix(end) for end in _SUFFIXES if name.endswith(end)), name)
        elif line.startswith(type_prefix):
            name = line[7:].partition(" ")[0]
        else:
            continue
        # A counter's TYPE line may leave out the suffix that its samples carry.
        if name in names or f"{name}_total" in names:
            kept.append(line)
    return kept


def _samples(lines: list[str], scrape: Scrape) -> Iterator[Sample]:
    """Samples of well-formed lines; one bad line (a torn end, garbage) costs only itself and is counted."""
    try:
        families = list(text_string_to_metric_families("\n".join(lines) + "\n"))
    except (ValueError, IndexError, KeyError):
        families = []
        for line in lines:
            if line.startswith("#"):
                continue
            try:
                families += text_string_to_metric_families(line + "\n")
            except (ValueError, IndexError, KeyError):
                scrape.bad_lines += 1
    for family in families:
        yield from family.samples


def _put(scrape: Scrape, figure: str, metric: EngineMetric, samples: dict[str, list[Sample]]) -> None:
    for name in metric.names:
        if metric.kind == "histogram":
            histogram = _histogram(name, samples)
            if histogram is not None:
                scrape.histograms[figure] = histogram
                return
        elif name in samples:
            matching = [sample for sample in samples[name] if set(metric.labels) <= sample.labels.items()]
            if not matching:
                continue
            values = [sample.value for sample in _one_of_each_replica(matching)]
            total = sum(values) if metric.together == "sum" else max(values)
            (scrape.counters if metric.kind == "counter" else scrape.gauges)[figure] = total
            return


def _histogram(name: str, samples: dict[str, list[Sample]]) -> Histogram | None:
    buckets: dict[float, float] = {}
    for sample in _one_of_each_replica(samples.get(f"{name}_bucket", [])):
        try:
            bound = float(sample.labels["le"])
        except (KeyError, ValueError):
            continue
        buckets[bound] = buckets.get(bound, 0.0) + sample.value
    if not buckets:
        return None
    count = sum(sample.value for sample in _one_of_each_replica(samples.get(f"{name}_count", [])))
    total = sum(sample.value for sample in _one_of_each_replica(samples.get(f"{name}_sum", [])))
    return Histogram(dict(sorted(buckets.items())), total, count or buckets.get(math.inf, 0.0))


def _one_of_each_replica(samples: list[Sample]) -> list[Sample]:
    """Samples that differ only in the number of a replica are one figure told twice: the first is kept."""
    kept: dict[tuple[tuple[str, str], ...], Sample] = {}
    for sample in samples:
        key = tuple(sorted(item for item in sample.labels.items() if item[0] not in REPLICA_LABELS))
        kept.setdefault(key, sample)
    return list(kept.values())
