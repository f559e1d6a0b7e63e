"""The settings of one measurement. Light: forms and the command line import it without the engines."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from vlmconsole.measure.arrivals import Arrivals, shape_of
from vlmconsole.measure.slo import EXAMPLE, Slo
from vlmconsole.system.typed_paths import PathOrName
from vlmconsole.vision.limits import MAX_ASPECT_RATIO, MAX_PIXELS

#: client lag (p99) past which a cell is INVALID, unless its settings say otherwise: so many seconds, or this share
#: of the TTFT's p50 where that is more. Fixed before anything is measured.
LAG_LIMIT_S, LAG_SHARE = 0.020, 0.02
#: share of failed requests past which a cell is INVALID: those that are left are no sample of what was asked
FAILURE_LIMIT = 0.05
_SIZE = re.compile(r"([1-9]\d*)[x×]([1-9]\d*)")
MAX_SIDE = 16_384  # pixels
#: fields that settings have in their JSON only where they are set
ADDED = (
    "burstiness",
    "ramp_from",
    "trace",
    "speed",
    "duration",
    "slo",
    "data",
    "split",
    "images",
    "prompt",
    "images_each",
    "jpeg",
    "repeat_as_is",
)


def picture_size(text: str) -> tuple[int, int] | None:
    """(width, height) in pixels of `448x336`, None for "". Raises ValueError for what no model could be sent."""
    if not text:
        return None
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError("must be WIDTHxHEIGHT in pixels, e.g. 448x336")
    if max(map(len, match.groups())) > len(str(MAX_SIDE)) or max(int(match[1]), int(match[2])) > MAX_SIDE:
        raise ValueError(f"a side may have at most {MAX_SIDE} pixels")
    width, height = int(match[1]), int(match[2])
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        raise ValueError(f"longer than {MAX_ASPECT_RATIO}:1, which the models' image processors refuse")
    if width * height > MAX_PIXELS:
        raise ValueError(f"at most {MAX_PIXELS // 1_000_000} million pixels")
    return width, height


class BenchSettings(BaseModel):
    """One measurement. A server is named by its profile, or by base_url with the model to ask for."""

    model_config = ConfigDict(extra="forbid")

    server: str = Field("", description="Profile name; empty with base_url, else the lab's own server")
    base_url: str = Field("", description="Address of an OpenAI-compatible server, e.g. http://127.0.0.1:8000/v1")
    model: str = Field("", description="Model name to send, with base_url; empty: what the server names first")
    api_key_env: str = Field("", description="NAME of the variable that holds the key, with base_url")
    concurrency: int = Field(1, ge=1, le=20_000, description="Requests kept in flight by the client (C)")
    requests: int = Field(12, ge=1, le=1_000_000, description="Measured requests")
    warm_up: int | None = Field(None, ge=0, description="Warm-up requests, not counted; default: C, at most 4")
    image: str = Field("", description="Image size in pixels, WIDTHxHEIGHT; empty: text only")
    input_tokens: int | None = Field(None, ge=1, description="Prompt tokens, including the image; default: short")
    output_tokens: int = Field(
        128, ge=1, description="Output tokens of an answer; reached exactly where the engine can"
    )
    equal_work: bool = Field(False, description="Set aside requests that did not return exactly output_tokens")
    rate: float | None = Field(
        None, ge=1e-6, le=1e6, description="Requests per second (open loop); default: closed loop"
    )
    arrivals: Literal["closed", "constant", "poisson", "gamma", "ramp", "trace"] = Field(
        "constant", description="When requests are due; closed, constant and poisson without rate: closed loop"
    )
    burstiness: float | None = Field(
        None,
        ge=0.01,
        le=1000,
        description="Burstiness of arrivals gamma: 1 is Poisson, below 1 in bursts, above 1 more even",
    )
    ramp_from: float | None = Field(
        None, ge=0, le=1e6, description="Requests per second at the start of arrivals ramp; rate is its end"
    )
    trace: PathOrName = Field(
        "", description="File of arrivals trace: JSONL of timestamp (ms), input_length, output_length, hash_ids"
    )
    speed: float | None = Field(None, gt=0, le=1e6, description="How many times as fast a trace is replayed; default 1")
    duration: float | None = Field(
        None, gt=0, le=604_800, description="Seconds for which requests are sent, in the place of requests"
    )
    data: PathOrName = Field("", description="dataset whose questions are the load; each is used once before any twice")
    split: str = Field("", description="split of data; default: test, or its only one")
    images: PathOrName = Field("", description="folder whose images are the load, asked about with prompt")
    prompt: str = Field("", description="what is asked about the images of a folder")
    images_each: int | None = Field(None, ge=1, le=64, description="images of a folder in each request; default 1")
    jpeg: int | None = Field(None, ge=1, le=100, description="quality with which images are encoded anew as JPEG")
    repeat_as_is: bool = Field(False, description="repeat questions unchanged, so that caches may know them")
    slo: str = Field(
        "", description=f"Objective for goodput: which share of requests keeps which limit, e.g. {EXAMPLE}"
    )
    temperature: float = Field(0.0, ge=0, le=2, description="Sampling temperature; 0 = greedy")
    seed: int = Field(0, description="Seed of inputs and drawn arrivals")
    lag_limit_ms: float = Field(
        LAG_LIMIT_S * 1000, gt=0, description="Client lag above which it is INVALID (p99, ms; at least 2 % of TTFT)"
    )
    failure_limit: float = Field(
        FAILURE_LIMIT, ge=0, le=1, description="Share of failed requests above which it is INVALID, 0 to 1"
    )
    stall_timeout_s: float = Field(120.0, gt=0, description="Silence after which a request is abandoned, s")
    total_timeout_s: float = Field(900.0, gt=0, description="Longest a request may take, s")

    @field_validator("image")
    @classmethod
    def _check_image(cls, value: str) -> str:
        picture_size(value)
        return value.replace("×", "x")

    @field_validator("slo")
    @classmethod
    def _check_slo(cls, value: str) -> str:
        return str(Slo.parse(value)) if value else ""

    @model_validator(mode="before")
    @classmethod
    def _without_requests(cls, value: Any) -> Any:
        """`requests=null` leaves them out, so that a duration can take the place of a preset's."""
        if isinstance(value, dict) and "requests" in value and value["requests"] in (None, ""):
            return {key: given for key, given in value.items() if key != "requests"}
        return value

    @model_validator(mode="after")
    def _check_load(self) -> BenchSettings:
        self.check_load()
        return self

    def check_load(self) -> None:
        """Raise ValueError for settings of the load that do not fit together."""
        shape_of(self.arrivals, self)
        self._check_examples()
        if self.duration is not None and "requests" in self.model_fields_set:
            raise ValueError("requests and duration both say when it ends: leave one out (requests=null)")

    def _check_examples(self) -> None:
        if self.data and self.images:
            raise ValueError("data and images are two loads: leave one out")
        for name, wanted in (("split", "data"), ("prompt", "images"), ("images_each", "images")):
            if getattr(self, name) and not getattr(self, wanted):
                raise ValueError(f"{name} belongs to {wanted}: name that, too")
        if self.images and not self.prompt:
            raise ValueError("prompt is missing: what is asked about the images")
        if not (self.data or self.images):
            if self.jpeg is not None or self.repeat_as_is:
                raise ValueError("jpeg and repeat_as_is belong to data or images: name one of them, too")
            return
        own = [name for name in ("image", "input_tokens", "trace") if getattr(self, name)]
        if own:
            raise ValueError(f"{own[0]} makes prompts of its own: leave it out, or data and images")

    @model_serializer(mode="wrap")
    def _serialized(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        value: dict[str, Any] = handler(self)
        # Jobs and plans from before there was such a field stay the same.
        if value.get("failure_limit") == FAILURE_LIMIT:
            del value["failure_limit"]
        for name in ADDED:
            if value.get(name) in (None, "", False):
                value.pop(name, None)
        for name in self.left_out:
            value.pop(name, None)
        return value

    @property
    def left_out(self) -> set[str]:
        """Fields that mean nothing here and are not in the JSON."""
        return {"requests"} if self.wanted_requests is None else set()

    @property
    def wanted_requests(self) -> int | None:
        """How many requests are measured; None: as many as the duration or the trace has."""
        ends = self.duration is not None or self.arrivals == "trace"
        return None if ends and "requests" not in self.model_fields_set else self.requests

    @property
    def shape(self) -> Arrivals:
        """When requests are due. Raises LabError for a trace that cannot be read."""
        return shape_of(self.arrivals, self).of(self)

    @property
    def objective(self) -> Slo | None:
        """What goodput is counted by; None: it is not."""
        return Slo.parse(self.slo) if self.slo else None

    @property
    def open_loop(self) -> bool:
        """Whether requests are sent when they are due, however many are in flight."""
        return self.rate is not None or self.arrivals == "trace"

    @property
    def image_size(self) -> tuple[int, int] | None:
        return picture_size(self.image)

    @property
    def warm_ups(self) -> int:
        return min(4, self.concurrency) if self.warm_up is None else self.warm_up
