"""Waiting for sockets with sub-millisecond deadlines: epoll on Linux, poll elsewhere."""

from __future__ import annotations

import select

READ, WRITE = select.POLLIN, select.POLLOUT
FAULT = select.POLLERR | select.POLLHUP


class Poller:
    """Level-triggered readiness of many sockets; no ceiling but the process's file limit."""

    def __init__(self) -> None:
        if hasattr(select, "epoll"):
            self._epoll = select.epoll()
            self._poll = None
        else:
            self._poll = select.poll()

    def add(self, descriptor: int, mask: int) -> None:
        (self._poll or self._epoll).register(descriptor, mask)

    def change(self, descriptor: int, mask: int) -> None:
        (self._poll or self._epoll).modify(descriptor, mask)

    def remove(self, descriptor: int) -> None:
        (self._poll or self._epoll).unregister(descriptor)

    def wait(self, seconds: float) -> list[tuple[int, int]]:
        """`(descriptor, mask)` of what is ready, after at most `seconds`.

        epoll counts in milliseconds and Python rounds them up, which would make every deadline late
        by half a millisecond. So whole milliseconds are waited for by epoll, and the rest by
        `select` on the epoll descriptor itself, which counts in microseconds.
        """
        if self._poll is not None:
            return self._poll.poll(max(0.0, seconds * 1000))
        if seconds >= 0.001:
            return self._epoll.poll((int(seconds * 1000) - 0.5) / 1000)
        if seconds > 0:
            select.select([self._epoll], [], [], seconds)
        return self._epoll.poll(0)

    def close(self) -> None:
        if self._poll is None:
            self._epoll.close()
