"""When the requests of a load are due: a registered class for each shape of arrivals."""

from __future__ import annotations

import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from vlmconsole.measure.trace import Trace, read_trace
from vlmconsole.text.numbers import decimal

#: requests of one measurement at most, as `requests` allows
MOST_REQUESTS = 1_000_000


class ArrivalSettings(Protocol):
    """The settings of a measurement that decide when requests are due."""

    rate: float | None
    burstiness: float | None
    ramp_from: float | None
    trace: str
    speed: float | None
    seed: int
    duration: float | None

    @property
    def wanted_requests(self) -> int | None: ...


@dataclass(frozen=True)
class Arrivals(ABC):
    """A shape of arrivals with its settings: it cannot do without `needs`, and reads `takes`, too."""

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ("rate",)
    takes: ClassVar[tuple[str, ...]] = ()

    @classmethod
    @abstractmethod
    def of(cls, settings: ArrivalSettings) -> Arrivals:
        """Return the shape as `settings` want it; they have all that it needs."""

    @abstractmethod
    def times(self) -> Iterator[float]:
        """Due times, s after the start, ascending, the first at 0. Absolute: a late request delays no other."""

    def due(self, requests: int | None, duration: float | None = None) -> list[float] | None:
        """Return the due times of at most `requests` in at most `duration` s; None: whenever one of C is free."""
        times = itertools.islice(self.times(), MOST_REQUESTS if requests is None else requests)
        return list(times if duration is None else itertools.takewhile(lambda at: at < duration, times))

    @abstractmethod
    def label(self) -> str:
        """Return what conditions hold of it; "" for a closed loop."""


ARRIVALS: dict[str, type[Arrivals]] = {}


def register(arrivals: type[Arrivals]) -> type[Arrivals]:
    """Make a shape known by its name."""
    ARRIVALS[arrivals.name] = arrivals
    return arrivals


@register
@dataclass(frozen=True)
class ClosedLoop(Arrivals):
    """C requests in flight: one ends, the next is sent."""

    name = "closed"
    needs = ()

    @classmethod
    def of(cls, settings: ArrivalSettings) -> Arrivals:
        return cls()

    def times(self) -> Iterator[float]:
        return iter(())

    def due(self, requests: int | None, duration: float | None = None) -> list[float] | None:
        return None

    def label(self) -> str:
        return ""


@register
@dataclass(frozen=True)
class ConstantArrivals(Arrivals):
    """Evenly spaced, `rate` a second."""

    name = "constant"
    rate: float

    @classmethod
    def of(cls, settings: ArrivalSettings) -> Arrivals:
        return cls(settings.rate or 0.0)

    def times(self) -> Iterator[float]:
        return (number / self.rate for number in itertools.count())

    def label(self) -> str:
        return self.name


@register
@dataclass(frozen=True)
class PoissonArrivals(Arrivals):
    """Independent of each other: exponential gaps, `rate` a second."""

    name = "poisson"
    rate: float
    seed: int

    @classmethod
    def of(cls, settings: ArrivalSettings) -> Arrivals:
        return cls(settings.rate or 0.0, settings.seed)

    def times(self) -> Iterator[float]:
        draw = random.Random(self.seed)
        return itertools.accumulate((draw.expovariate(self.rate) for _ in itertools.count()), initial=0.0)

    def label(self) -> str:
        return self.name


@register
@dataclass(frozen=True)
class GammaArrivals(Arrivals):
    """Gamma-distributed gaps of shape `burstiness`: 1 is Poisson, below comes in bursts, above is more even.

    The same meaning as vLLM's `--burstiness`: the gaps' coefficient of variation is 1 / √burstiness.
    """

    name = "gamma"
    needs = ("rate", "burstiness")
    rate: float
    burstiness: float
    seed: int

    @classmethod
    def of(cls, settings: ArrivalSettings) -> Arrivals:
        return cls(settings.rate or 0.0, settings.burstiness or 1.0, settings.seed)

    def times(self) -> Iterator[float]:
        draw, scale = random.Random(self.seed), 1 / (self.rate * self.burstiness)
        gaps = (draw.gammavariate(self.burstiness, scale) for _ in itertools.count())
        return itertools.accumulate(gaps, initial=0.0)

    def label(self) -> str:
        return f"gamma, burstiness {self.burstiness:g}"


@register
@dataclass(frozen=True)
class RampArrivals(Arrivals):
    """A rate that grows (or falls) in a straight line from `ramp_from` to `rate` over the whole measurement.

    The request number i is due where the integral of the rate is i; the ramp is as long as `duration`, or as the
    requests take. `length`: seconds.
    """

    name = "ramp"
    needs = ("rate", "ramp_from")
    ramp_from: float
    rate: float
    length: float

    @classmethod
    def of(cls, settings: ArrivalSettings) -> Arrivals:
        begin, end = settings.ramp_from or 0.0, settings.rate or 0.0
        length = settings.duration or 2 * (settings.wanted_requests or 0) / (begin + end)
        return cls(begin, end, length)

    def times(self) -> Iterator[float]:
        slope = (self.rate - self.ramp_from) / self.length  # a + slope × t, integrated: a t + slope t² / 2 = i
        for number in itertools.count():
            inner = self.ramp_from**2 + 2 * slope * number
            sum_of_rates = self.ramp_from + max(0.0, inner) ** 0.5
            at = 2 * number / sum_of_rates if number else 0.0
            if inner < 0 or at > self.length:
                return
            yield at

    def label(self) -> str:
        return f"ramp from {self.ramp_from:g}"


@register
@dataclass(frozen=True)
class TraceArrivals(Arrivals):
    """As a file recorded them, `speed` times as fast."""

    name = "trace"
    needs = ("trace",)
    takes = ("speed",)
    trace: Trace
    speed: float

    @classmethod
    def of(cls, settings: ArrivalSettings) -> Arrivals:
        return cls(read_trace(Path(settings.trace)), settings.speed or 1.0)

    def times(self) -> Iterator[float]:
        return (request.at / self.speed for request in self.trace.requests)

    def label(self) -> str:
        count = decimal(len(self.trace.requests))
        return f"trace {self.trace.sha256[:12]} ({count} requests), speed {self.speed:g}"


#: settings that only some shapes read; they are new, so none is ignored
SHAPE_SETTINGS = ("burstiness", "ramp_from", "trace", "speed")


def shape_of(arrivals: str, settings: ArrivalSettings) -> type[Arrivals]:
    """Return the class that `arrivals` names; without a rate an evenly spaced or Poisson load is a closed loop, as
    ever.

    Raises ValueError for settings that are missing for it, or that it would not read.
    """
    chosen = ARRIVALS[arrivals]
    if chosen in (ConstantArrivals, PoissonArrivals) and settings.rate is None:
        chosen = ClosedLoop
    missing = [name for name in chosen.needs if getattr(settings, name) in (None, "")]
    if missing:
        raise ValueError(f"arrivals {arrivals} needs {' and '.join(missing)}")
    reads = {*chosen.needs, *chosen.takes}
    given = [name for name in SHAPE_SETTINGS if getattr(settings, name) not in (None, "") and name not in reads]
    if given:
        users = [name for name, known in ARRIVALS.items() if given[0] in (*known.needs, *known.takes)]
        raise ValueError(f"{given[0]} is read by arrivals {' or '.join(users)}, not by {chosen.name}")
    if settings.rate is not None and "rate" not in reads:
        raise ValueError(f"arrivals {chosen.name} has no rate: leave it out")
    return chosen
