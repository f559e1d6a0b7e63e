"""The settings of a capacity search: a load as `bench` has it, an objective, and what is to be found."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from vlmconsole.measure.capacity.rule import CapacityRule
from vlmconsole.measure.capacity.search import LoadRange
from vlmconsole.measure.settings import BenchSettings

Find = Literal["rate", "concurrency", "B"]
#: where loads may lie, unless settings say otherwise
RANGES: dict[str, tuple[float, float]] = {"rate": (0.01, 10_000.0), "concurrency": (1, 4096), "B": (1, 1024)}


class CapacitySettings(BenchSettings):
    """The largest load under which an objective holds. The load is that of a measurement, but for what is found."""

    find: Find = Field("rate", description="what is made larger: rate, concurrency, or B with C = B on an owned server")
    start: float | None = Field(None, gt=0, description="first load tried; default: 1, or the rate one at a time gives")
    least: float | None = Field(None, gt=0, description="least load tried; default 0.01 per second, or 1")
    most: float | None = Field(None, gt=0, description="largest load tried; default 10,000 per second, C 4096, B 1024")
    rule: CapacityRule = Field(CapacityRule(), description="how a load is judged; frozen before the first probe")
    running_limit: int | None = Field(None, ge=1, description="B of an owned server; default: as its profile says")
    prefix_cache: bool | None = Field(None, description="prefix cache of an owned server; default: as its profile says")

    @model_validator(mode="after")
    def _check_search(self) -> CapacitySettings:
        if not self.slo:
            raise ValueError("slo is missing: name the objective that the load must keep")
        if "requests" in self.model_fields_set or self.duration is not None:
            raise ValueError("requests and duration are the rule's: set rule.first and rule.most")
        if self.arrivals in ("ramp", "trace"):
            raise ValueError(f"arrivals {self.arrivals} has no single rate to find")
        if self.find in ("concurrency", "B") and self.rate is not None:
            raise ValueError(f"rate is not used where {self.find} is found: leave it out")
        if self.find == "rate" and self.rate is not None:
            raise ValueError("rate is what is found: name start, least and most")
        if self.find != "rate" and self.arrivals not in ("constant", "closed"):
            raise ValueError(f"arrivals {self.arrivals} is of an open loop, and {self.find} is found in a closed one")
        if self.find == "B" and self.running_limit is not None:
            raise ValueError("running_limit is what is found: name start, least and most")
        if self.rule.most < self.rule.first:
            raise ValueError("rule.most is below rule.first")
        if "concurrency" in self.model_fields_set:
            raise ValueError(f"concurrency is not used where {self.find} is found: name start, least and most")
        self.probe(1, 1, 0)  # raises what no pass could have
        low, high = self.ends
        if not low <= (self.start or low) <= high:
            raise ValueError("start must lie between least and most")
        if self.find != "rate" and any(end != int(end) for end in (low, high, self.start or 1)):
            raise ValueError(f"{self.find} is a whole number: so are start, least and most")
        return self

    @property
    def left_out(self) -> set[str]:
        return {"requests", "concurrency"}

    def check_load(self) -> None:
        """Nothing by itself: a probe's settings are checked when it is made."""

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the largest load tried."""
        least, most = RANGES[self.find]
        return self.least or least, self.most or most

    def loads(self, start: float) -> LoadRange:
        """Return where loads are looked for, from `start` on."""
        low, high = self.ends
        return LoadRange(min(high, max(low, start)), low, high, self.find != "rate")

    def probe(self, load: float, requests: int, seed: int) -> BenchSettings:
        """Return the settings of one pass under `load`."""
        base = self.model_dump(include=set(BenchSettings.model_fields) - {"requests", "seed", "concurrency", "rate"})
        own: dict[str, Any] = {"rate": load} if self.find == "rate" else {"concurrency": round(load)}
        if self.find == "rate" and self.arrivals == "closed":
            base["arrivals"] = "constant"
        # More failures than usual are what a load that fails looks like, and no fault of the measurement.
        return BenchSettings.model_validate({**base, **own, "requests": requests, "seed": seed, "failure_limit": 1.0})
