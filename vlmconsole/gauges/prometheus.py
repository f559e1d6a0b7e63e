"""Prometheus text → the figures of an engine's table: matched by name, put together over labels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from vlmconsole.gauges.figures import SourceError, beginning
from vlmconsole.gauges.names import PROMETHEUS, REPLICA_LABELS, Metric, wanted

_SUFFIXES = ("_bucket", "_sum", "_count")


@dataclass(frozen=True)
class Histogram:
    """A cumulative histogram since the server's start. `buckets`: upper bound (seconds, last +inf) → count ≤ it."""

    buckets: dict[float, float]
    sum: float
    count: float


@dataclass
class Scrape:
    """One reading of a server's metrics. A figure that the server does not report is absent, never zero."""

    counters: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    bad_lines: int = 0


def engine_of(text: str) -> str | None:
    """`sglang` or `vllm` by the names in the text; None when it is neither's."""
    return next((engine for engine in PROMETHEUS if f"\n{engine}:" in text or text.startswith(f"{engine}:")), None)


def read_metrics(text: str, engine: str) -> Scrape:
    """The figures of `engine`'s table. Lines of other metrics are never parsed: a real page has 800 of them.

    Raises SourceError when not one known metric is in the text, saying what it is instead.
    """
    scrape = Scrape()
    samples: dict[str, list[Sample]] = {}
    for sample in _samples(_lines(text, wanted(engine)), scrape):
        if math.isfinite(sample.value):
            samples.setdefault(sample.name, []).append(sample)
    for figure, metric in PROMETHEUS[engine].items():
        _put(scrape, figure, metric, samples)
    if not (scrape.counters or scrape.histograms or scrape.gauges):
        raise SourceError(f"no {engine} metric is in the answer, which begins {beginning(text)}")
    return scrape


def _lines(text: str, names: frozenset[str]) -> list[str]:
    """The lines that speak of these names, with the TYPE lines that make histograms of them."""
    kept = []
    for line in text.split("\n"):
        if line.startswith("# TYPE "):
            name = line[7:].partition(" ")[0]
        elif line.startswith("#"):
            continue
        else:
            name = line.partition("{")[0].partition(" ")[0]
            if name not in names:
                name = next((name.removesuffix(end) for end in _SUFFIXES if name.endswith(end)), name)
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


def _put(scrape: Scrape, figure: str, metric: Metric, samples: dict[str, list[Sample]]) -> None:
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
