"""What comes from outside, read within limits: bytes of a body, seconds for the whole of it, nesting of its JSON.

Every control request (settings, models, flush, metrics, a picture from the web) goes through :func:`fetch`; every JSON
that a server sent goes through :func:`json_value`.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from vlmconsole.errors import LabError
from vlmconsole.system.redaction import redacted_bytes
from vlmconsole.text.sizes import MIB, size

if TYPE_CHECKING:
    import httpx

MAX_DEPTH = 64  # levels; what servers really send has less than ten
_ZLIB = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # content encoding → zlib's window bits


@dataclass(frozen=True)
class Limits:
    """Most bytes of a body (unpacked), and the seconds for the whole answer, its head and every drip included."""

    size: int = 4 * MIB
    seconds: float = 10.0


class LimitError(LabError):
    """An answer passed a limit. `kind`: size, time, silence (not even its head came), or coding (a compression that
    is not read).
    """

    def __init__(self, message: str, kind: Literal["size", "time", "silence", "coding"]) -> None:
        super().__init__(message, code=f"limit-{kind}")
        self.kind = kind


class Unpacker:
    """The pieces of one body, unpacked as they come and never beyond `size` bytes.

    Raises LimitError, whose message goes on after a subject ("it …").
    """

    def __init__(self, size: int, coding: str = "") -> None:
        self.size, self._coding = size, coding.strip().lower()
        self.body = bytearray()
        self._zip = None
        if self._coding not in ("", "identity"):
            if self._coding not in _ZLIB:
                raise LimitError(f"is compressed ({self._coding[:40]}), which was not asked for", "coding")
            self._zip = zlib.decompressobj(_ZLIB[self._coding])

    def add(self, piece: bytes) -> None:
        """Take the next piece as it came over the wire."""
        room = self.size + 1 - len(self.body)
        if self._zip is not None:
            try:
                piece = self._zip.decompress(piece, room)
            except zlib.error:
                raise LimitError(f"is no {self._coding} data, though it says so", "coding") from None
        self.body += piece[:room]
        if len(self.body) > self.size:
            raise LimitError(f"is larger than {size(self.size)}", "size")


async def fetch(
    client: httpx.AsyncClient, request: httpx.Request, limits: Limits, *, as_sent: bool = False
) -> httpx.Response:
    """Return the whole answer to one request, whatever its status, or LimitError; httpx's own errors go through.

    A key that the server repeats is not in it, unless the body is wanted byte for byte (`as_sent`). Redirects are as
    the client has them. A body that comes compressed is unpacked up to the limit and no further.
    """
    import httpx

    where = request.url.copy_with(query=None, userinfo=b"")
    response = None
    try:
        async with asyncio.timeout(limits.seconds):
            response = await client.send(request, stream=True)
            try:
                stated = response.headers.get("content-length", "")
                if stated.isdigit() and (len(stated) > 18 or int(stated) > limits.size):
                    raise LimitError(f"is larger than {size(limits.size)}", "size")
                unpacked = Unpacker(limits.size, response.headers.get("content-encoding", ""))
                async for piece in response.aiter_raw():
                    unpacked.add(piece)
            finally:
                await response.aclose()
    except (TimeoutError, httpx.ReadTimeout):
        if response is None:
            raise LimitError(f"{where} did not answer within {limits.seconds:g} s", "silence") from None
        raise LimitError(f"{where} did not finish its answer within {limits.seconds:g} s", "time") from None
    except httpx.RemoteProtocolError as error:
        if "too long" not in str(error):  # h11's words for a head past its own limit, 100 KB
            raise
        raise LimitError(f"the answer of {where} has a head that is too long", "size") from None
    except LimitError as error:
        raise LimitError(f"the answer of {where} {error.message}", error.kind) from None
    # What it says of its form on the wire is no longer true of the body that we hand on.
    form = {b"content-encoding", b"content-length", b"transfer-encoding"}
    headers = [(name, value) for name, value in response.headers.raw if name.lower() not in form]
    body = bytes(unpacked.body)
    content = body if as_sent else redacted_bytes(body)
    return httpx.Response(response.status_code, headers=headers, content=content, request=request)


def json_value(data: str | bytes | bytearray, depth: int = MAX_DEPTH) -> Any:
    """Return the JSON value in `data`. Raises ValueError for what is no JSON, and for more than `depth` levels."""
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict | list):
        return value
    level: list[Any] = [value]
    for _ in range(depth):
        level = [
            child
            for holder in level
            for child in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(child, dict | list)
        ]
        if not level:
            return value
    raise ValueError("nested too deeply")
