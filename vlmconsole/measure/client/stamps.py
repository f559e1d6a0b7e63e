"""Clocks of the load client, and when the kernel received what it read.

All times of the client are integers, nanoseconds of `CLOCK_MONOTONIC`. Linux stamps each received
packet in software with the *wall* clock (`SO_TIMESTAMPING`); the offset between both clocks is
sampled all along, so that a step of the wall clock shows instead of shifting figures.
"""

from __future__ import annotations

import socket
import struct
import sys
import time

clock = time.monotonic_ns

#: asm-generic value on every Linux architecture but a few that Python wheels do not exist for
SO_TIMESTAMPING = 37
RX_SOFTWARE, REPORT_SOFTWARE = 1 << 3, 1 << 4
#: room for one `scm_timestamping` (three timespecs) with its header
ANCILLARY_BYTES = socket.CMSG_SPACE(48) if hasattr(socket, "CMSG_SPACE") else 0
_TIMESPECS = struct.Struct("@6q")

Ancillary = list[tuple[int, int, bytes]]


def ask_kernel_stamps(sock: socket.socket) -> bool:
    """Ask for software receive stamps on `sock`; whether the kernel agreed (Linux only)."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, RX_SOFTWARE | REPORT_SOFTWARE)
    except OSError:
        return False
    return True


def kernel_wall_ns(ancillary: Ancillary) -> int | None:
    """Return the wall time (ns) at which the kernel received the newest byte of a read, or None when it did not say.

    One read may hold several packets; the kernel then reports the last one, so lag taken from it is
    a lower bound for the earlier bytes of that read.
    """
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPING and len(data) >= _TIMESPECS.size:
            seconds, nanoseconds = _TIMESPECS.unpack_from(data)[:2]
            return int(seconds * 1_000_000_000 + nanoseconds) or None
    return None


def wall_offset_ns() -> int:
    """Wall clock minus monotonic clock, ns. The best of three, as a preemption between the reads would add to it."""
    best = None
    for _ in range(3):
        before = clock()
        wall = time.time_ns()
        after = clock()
        sample = (after - before, wall - (before + after) // 2)
        best = sample if best is None or sample < best else best
    assert best is not None
    return best[1]
