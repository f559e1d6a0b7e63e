"""The conditions of a measurement: no number without them."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

#: conditions that stand in the JSON only where they are known, so that those from before there were such stay the same
ADDED = frozenset({"arrivals", "data_sha256", "repeats", "image_formats", "image_bytes"})


class Conditions(BaseModel):
    """What produced a figure. Every field may be unknown (None), and unknown is never equal to known.

    `client_concurrency` is C, how many requests the client keeps in flight; `running_limit` is B, how
    many the server runs at once. They are two settings and always two fields. Lengths are in tokens as
    the server counted them: one number when all requests agreed, else text such as `"120–128"`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    hardware: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    model: str | None = None
    asked_model: str | None = None  # the name asked for, where the answers named another one (then in `model`)
    model_sha256: str | None = None
    precision: str | None = None  # of the weights: "bfloat16", or a quantisation in words
    quantization: dict[str, Any] | None = None  # method, bits, group_size, mode; None: not quantised, or not known
    adapter: str | None = None
    image: str | None = None  # size as sent, "448x336"; of several the smallest and the largest
    image_formats: str | None = None  # of examples as load: "image/jpeg 20, image/png 4"
    image_bytes: int | None = None  # of such an image as it is sent, on the average
    data_sha256: str | None = None  # of the questions that were the load (dataset and split, or images and prompt)
    repeats: str | None = None  # "salted" or "as they are"; None: no question was used twice
    input_tokens: int | str | None = None
    output_tokens: int | str | None = None
    client_concurrency: int | None = None
    running_limit: int | None = None
    rate: float | None = None  # requests per second, None: as fast as C allows
    arrivals: str | None = None  # how requests of an open loop were spaced: "poisson"; None: closed loop
    cache: str | None = None  # prefix cache: "off", "on", "on, flushed before each"
    warm_up: str | None = None
    clock: str | None = None  # what the clock covered
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None  # as it was asked for, None: the server's own
    seed: int | None = None
    max_tokens: int | None = None
    system_sha256: str | None = None  # of the system prompt's text, None: there was none
    prompt_sha256: str | None = None  # of a fixed question as the model's chat template writes it
    template_sha256: str | None = None  # of that template's text
    route: Literal["loopback", "tunnel", "network"] | None = None
    client: str | None = None
    client_error: str | None = None  # this client's own measured error, from `vlmconsole calibrate`
    settings: dict[str, Any] | None = None  # the server's effective settings, as read back
    notes: tuple[str, ...] = ()

    @model_serializer(mode="wrap")
    def _serialized(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        value: dict[str, Any] = handler(self)
        return {key: held for key, held in value.items() if key not in ADDED or held is not None}

    def digest(self) -> str:
        """SHA-256 (hex) of the canonical JSON: the same conditions give the same digest."""
        return hashlib.sha256(canonical_json(self.model_dump(mode="json"))).hexdigest()

    def known(self) -> dict[str, Any]:
        """Return the fields that are known, in their order, for showing."""
        return {key: value for key, value in self.model_dump(mode="json").items() if value not in (None, [])}


BARE_PROMPT = "553bf5776f4209df4dc88810a1ec4f14e256c4e4841407a24b664153c7469cd2"
"""The prompt of in-process runs that recorded none: `models.door.bare_door`, whatever the model's template said."""
_IN_PROCESS = ("in-process", "in-process GRPO", "transformers")


def prompt_of(conditions: Mapping[str, Any]) -> str | None:
    """Return the hash of a run's prompt form; None where it is not known (a server's, in runs that recorded none)."""
    stated = conditions.get("prompt_sha256")
    if stated is None and conditions.get("engine") in _IN_PROCESS:
        return BARE_PROMPT
    return str(stated) if stated is not None else None


def another_prompt(facts: Mapping[str, str]) -> dict[str, str]:
    """`prompt_sha256` for an identity that must agree, only where it is not BARE_PROMPT, which older ones leave out."""
    return {key: value for key, value in facts.items() if key == "prompt_sha256" and value != BARE_PROMPT}


def same_prompt(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Return whether nothing is known against two runs having had the same prompt form."""
    return None in (prompt_of(a), prompt_of(b)) or prompt_of(a) == prompt_of(b)


def canonical_json(value: Any) -> bytes:
    """Return one byte string for one value: sorted keys, no spaces, UTF-8, finite numbers only (else ValueError)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()
