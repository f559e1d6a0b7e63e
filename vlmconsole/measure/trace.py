"""Recorded arrivals: JSONL of timestamp, input_length, output_length and hash_ids, as Mooncake publishes them.

Source: github.com/kvcache-ai/Mooncake, FAST25-release/traces (one object a line; milliseconds; a hash id stands for
512 tokens of prompt, and requests whose lists begin alike share that prefix).
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from vlmconsole.errors import LabError
from vlmconsole.text.numbers import decimal

BLOCK_TOKENS = 512  # of prompt for each hash id
MOST_BYTES = 1 << 30  # of a trace file
MOST_TOKENS = 10_000_000  # of one prompt or answer


@dataclass(frozen=True)
class TraceRequest:
    """One request: due `at` seconds after the first; lengths in tokens, None where the file tells none."""

    at: float
    input_tokens: int | None
    output_tokens: int | None
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Trace:
    """The requests of a file in the order in which they are due. `unread`: keys that nothing here reads."""

    requests: tuple[TraceRequest, ...]
    sha256: str
    unread: tuple[str, ...] = ()


_READ = frozenset({"timestamp", "input_length", "output_length", "hash_ids"})


def read_trace(path: Path) -> Trace:
    """Return the trace in `path`. Raises LabError, naming the line that cannot be read."""
    try:
        state = path.stat()
    except OSError as error:
        raise LabError(f"The trace {path} cannot be read: {error.strerror}.", code="trace-unreadable") from None
    return _read(path, state.st_mtime_ns, state.st_size)


@lru_cache(2)
def _read(path: Path, changed: int, size: int) -> Trace:
    if size > MOST_BYTES:
        raise LabError(f"The trace {path} is larger than 1 GiB.", "Cut it into parts.", code="trace-large")
    whole, rows, unread = hashlib.sha256(), [], set()
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                whole.update(line)
                if line.strip():
                    value = _object(line, path, number)
                    rows.append(_request(value, path, number))
                    unread |= value.keys() - _READ
    except OSError as error:
        raise LabError(f"The trace {path} cannot be read: {error.strerror}.", code="trace-unreadable") from None
    if not rows:
        raise LabError(f"The trace {path} holds no request.", code="trace-empty")
    rows.sort(key=lambda request: request.at)
    first = rows[0].at
    requests = tuple(TraceRequest(row.at - first, row.input_tokens, row.output_tokens, row.blocks) for row in rows)
    return Trace(requests, whole.hexdigest(), tuple(sorted(map(str, unread))))


def _object(line: bytes, path: Path, number: int) -> dict[str, object]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise _wrong(path, number, "it is no JSON object")
    return value


def _request(value: dict[str, object], path: Path, number: int) -> TraceRequest:
    at = value.get("timestamp")
    if isinstance(at, bool) or not isinstance(at, int | float) or not math.isfinite(at) or at < 0:
        raise _wrong(path, number, "timestamp must be milliseconds")
    blocks = value.get("hash_ids") or []
    if not isinstance(blocks, list) or not all(type(block) is int for block in blocks):
        raise _wrong(path, number, "hash_ids must be a list of whole numbers")
    wanted, answer = _length(value, "input_length", path, number), _length(value, "output_length", path, number)
    if blocks and (wanted is None or len(blocks) > wanted / BLOCK_TOKENS + 1):
        raise _wrong(path, number, f"hash_ids name more than its input_length ({BLOCK_TOKENS} tokens for each)")
    return TraceRequest(at / 1000, wanted, answer, tuple(blocks))


def _length(value: dict[str, object], key: str, path: Path, number: int) -> int | None:
    length = value.get(key)
    if length is None:
        return None
    if type(length) is not int or not 0 < length <= MOST_TOKENS:
        raise _wrong(path, number, f"{key} must be 1 to {decimal(MOST_TOKENS)} tokens")
    return length


def _wrong(path: Path, number: int, why: str) -> LabError:
    return LabError(
        f"The trace {path}, line {number}: {why}.",
        "Each line is an object with timestamp (ms), input_length, output_length and hash_ids, as Mooncake has them.",
        code="trace-invalid",
    )
