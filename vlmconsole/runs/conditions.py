"""The conditions of a measurement: no number without them."""

import hashlib
import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Conditions(BaseModel):
    """What produced a figure. Every field may be unknown (None), and unknown is never equal to known.

    ``client_concurrency`` is C, how many requests the client keeps in flight; ``running_limit`` is B, how
    many the server runs at once. They are two settings and always two fields. Lengths are in tokens as
    the server counted them: one number when all requests agreed, else text such as ``"120–128"``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    hardware: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    model: str | None = None
    asked_model: str | None = None  # the name asked for, where the answers named another one (then in `model`)
    model_sha256: str | None = None
    precision: str | None = None
    adapter: str | None = None
    image: str | None = None  # size as sent, "448x336"
    input_tokens: int | str | None = None
    output_tokens: int | str | None = None
    client_concurrency: int | None = None
    running_limit: int | None = None
    rate: float | None = None  # requests per second, None: as fast as C allows
    cache: str | None = None  # prefix cache: "off", "on", "on, flushed before each"
    warm_up: str | None = None
    clock: str | None = None  # what the clock covered
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None  # as it was asked for, None: the server's own
    seed: int | None = None
    max_tokens: int | None = None
    system_sha256: str | None = None  # of the system prompt's text, None: there was none
    route: Literal["loopback", "tunnel", "network"] | None = None
    client: str | None = None
    client_error: str | None = None  # this client's own measured error, from `vlmconsole calibrate`
    settings: dict[str, Any] | None = None  # the server's effective settings, as read back
    notes: tuple[str, ...] = ()

    def digest(self) -> str:
        """SHA-256 (hex) of the canonical JSON: the same conditions give the same digest."""
        return hashlib.sha256(canonical_json(self.model_dump(mode="json"))).hexdigest()

    def known(self) -> dict[str, Any]:
        """The fields that are known, in their order, for showing."""
        return {key: value for key, value in self.model_dump(mode="json").items() if value not in (None, [])}


def canonical_json(value: Any) -> bytes:
    """One byte string for one value: sorted keys, no spaces, UTF-8, finite numbers only (else ValueError)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()
