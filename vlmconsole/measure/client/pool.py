"""The load client's connections: opened ahead of need, kept while the server keeps them, counted when they fail."""

from __future__ import annotations

import errno
import ssl
from collections import deque
from collections.abc import Callable

from vlmconsole.measure.client.connection import Address, Connection, State, TlsConnection, resolve, tls_context
from vlmconsole.measure.client.plan import LoadPlan
from vlmconsole.measure.client.poller import WRITE, Poller
from vlmconsole.measure.client.spill import REFUSED, RESET, UNREACHABLE
from vlmconsole.system.listening import listener


class Pool:
    """Every connection of one client. `on_failed(outcome, detail)` is told of each that could not be opened.

    `failures_in_row` counts failed connections since the last answer; `spare` is how many idle ones are kept.
    Raises OSError when the host's name is not known.
    """

    def __init__(self, plan: LoadPlan, poller: Poller, on_failed: Callable[[str, str], None]) -> None:
        self._plan, self._poller, self._on_failed = plan, poller, on_failed
        self._context = tls_context() if plan.tls else None
        self._addresses: list[Address] = resolve(plan.host, plan.port)
        self.all: dict[int, Connection] = {}
        self.idle: deque[Connection] = deque()
        self.opening = 0
        self.opened = 0
        self.spare = 0
        self.failures_in_row = 0
        self.last_problem = ""
        self.stray_bytes = 0
        self.kernel_stamps = False

    def open_one(self) -> None:
        """Begin to open a connection; it joins `idle` once it can be used."""
        address = self._addresses[0]
        try:
            if self._context is not None:
                connection: Connection = TlsConnection(self.opened, address, self._context, self._plan.host)
            else:
                connection = Connection(self.opened, address, self._plan.kernel_stamps)
        except OSError as error:
            self._failed(address, error)
            return
        self.opened += 1
        self.kernel_stamps = connection.kernel_stamps
        self.opening += 1
        self.all[connection.descriptor] = connection
        self._poller.add(connection.descriptor, WRITE)

    def top_up(self, waiting: int) -> None:
        """Open what `waiting` requests and the spare ones need beyond what is idle or being opened."""
        for _ in range(waiting + self.spare - len(self.idle) - self.opening):
            if not waiting and self.failures_in_row:
                return  # spare connections are not worth hammering a server that refuses them
            self.open_one()

    def ready(self, connection: Connection) -> None:
        """Something happened on a connection that serves no request: it opened, or the server closed it, or sent
        what nobody asked for.
        """
        try:
            if connection.state is State.IDLE:
                self._unasked(connection)
            else:
                self._advance(connection)
        except BlockingIOError:
            return
        except OSError as error:
            self._broke(connection, error)

    def _unasked(self, connection: Connection) -> None:
        data, *_ = connection.read()
        self.stray_bytes += len(data)
        self.idle.remove(connection)
        self.drop(connection)

    def _advance(self, connection: Connection) -> None:
        mask = connection.advance()
        self._prove(connection)
        if connection.state is State.IDLE:
            self.opening -= 1
            self.idle.append(connection)
        self._poller.change(connection.descriptor, mask)

    def _prove(self, connection: Connection) -> None:
        """Nothing has been sent yet: does the socket that was proven to be the server's still hold the port?"""
        wanted = self._plan.listener
        if wanted is None or connection.state is State.OPENING:
            return
        listening = listener(self._plan.port)
        if listening is None or listening.inode != wanted:
            connection.state = State.OPENING  # it never became usable
            raise ConnectionRefusedError(errno.ECONNREFUSED, "the port belongs to another program; nothing was sent")

    def give_back(self, connection: Connection) -> None:
        """A connection whose request is answered. The last one used is the next one used: fewer sockets idle into
        the server's keep-alive limit.
        """
        connection.served += 1
        connection.state = State.IDLE
        self.idle.appendleft(connection)

    def drop(self, connection: Connection) -> None:
        """Close a connection and forget it; not one of `idle`."""
        if connection.state in (State.OPENING, State.HANDSHAKE):
            self.opening -= 1
        self.all.pop(connection.descriptor, None)
        self._poller.remove(connection.descriptor)
        connection.close()

    def expire(self, now: int) -> None:
        """Give up what has been opening for too long."""
        limit = now - int(self._plan.connect_timeout_s * 1e9)
        opening = (State.OPENING, State.HANDSHAKE)
        for connection in [c for c in self.all.values() if c.state in opening and c.opened_at < limit]:
            self.drop(connection)
            late = TimeoutError(errno.ETIMEDOUT, f"no connection within {self._plan.connect_timeout_s:g} s")
            self._failed(connection.address, late)

    def close(self) -> None:
        for connection in list(self.all.values()):
            self.drop(connection)

    def _broke(self, connection: Connection, error: OSError) -> None:
        idle = connection.state is State.IDLE
        if idle:
            self.idle.remove(connection)
        self.drop(connection)
        if not idle:
            if isinstance(error, ssl.SSLError):
                error = OSError(error.errno or 0, f"TLS: {error.reason or error}")
            self._failed(connection.address, error)

    def _failed(self, address: Address, error: OSError) -> None:
        if len(self._addresses) > 1 and address == self._addresses[0]:
            self._addresses.pop(0)  # e.g. localhost is ::1 first, and the server listens on 127.0.0.1 only
        if address != self._addresses[0]:
            self.open_one()
            return
        self.failures_in_row += 1
        refused = error.errno == errno.ECONNREFUSED
        outcome = REFUSED if refused else RESET if isinstance(error, ConnectionResetError) else UNREACHABLE
        detail = error.strerror or str(error)
        self.last_problem = detail
        self._on_failed(outcome, detail)
