"""One connection of the load client: non-blocking, opened before it is needed, plain TCP or TLS."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from enum import IntEnum

from vlmconsole.measure.client.poller import READ, WRITE
from vlmconsole.measure.client.stamps import ANCILLARY_BYTES, Ancillary, ask_kernel_stamps, clock

READ_BYTES = 65536
_MAX_PARTS = 64  # segments handed to one sendmsg; well below any IOV_MAX


class State(IntEnum):
    OPENING, HANDSHAKE, IDLE, BUSY, CLOSED = range(5)


#: data, ancillary data, flags, sender: what recvmsg gives
Read = tuple[bytes, Ancillary, int, object]
Address = tuple[socket.AddressFamily, tuple[object, ...]]


def resolve(host: str, port: int) -> list[Address]:
    """Return the addresses of `host`, looked up once for the whole cell. Raises OSError (socket.gaierror)."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, where) for family, _, _, _, where in addresses]


class Connection:
    """A plain TCP connection. Every method may raise OSError, which means that the connection is gone."""

    tls = False

    def __init__(self, number: int, address: Address, kernel_stamps: bool) -> None:
        family, where = address
        self.number = number
        self.address = address
        self.opened_at = clock()
        self.state = State.OPENING
        self.served = 0  # requests answered on it before the present one
        self.sock = socket.socket(family, socket.SOCK_STREAM | getattr(socket, "SOCK_NONBLOCK", 0))
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.kernel_stamps = kernel_stamps and ask_kernel_stamps(self.sock)
        self.descriptor = self.sock.fileno()
        self._out: list[memoryview] = []
        code = self.sock.connect_ex(where)
        if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
            self.close()
            raise OSError(code, os.strerror(code))

    def advance(self) -> int:
        """Go on with opening. Returns the mask to wait for; the state is IDLE once the connection can be used."""
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        self.state = State.IDLE
        return READ

    def send(self, parts: list[memoryview]) -> bool:
        """Begin to send `parts` in order; True when all of it went into the kernel at once."""
        self._out = parts
        return self.flush()

    def flush(self) -> bool:
        """Send what is left; True when nothing is left. Call again when the socket is writable."""
        while self._out:
            try:
                sent = self._send_some()
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return False
            while self._out and sent >= len(self._out[0]):
                sent -= len(self._out.pop(0))
            if sent:
                self._out[0] = self._out[0][sent:]
        return True

    def _send_some(self) -> int:
        return self.sock.sendmsg(self._out[:_MAX_PARTS])

    def read(self) -> Read:
        """Return what has arrived (b"" at the end of the stream) and its ancillary data; BlockingIOError: nothing
        has.
        """
        return self.sock.recvmsg(READ_BYTES, ANCILLARY_BYTES)

    def more(self) -> bool:
        """Return whether bytes wait above the socket, where readiness of the socket does not show them."""
        return False

    def close(self) -> None:
        self.state = State.CLOSED
        self.sock.close()


class TlsConnection(Connection):
    """TLS over a non-blocking socket. It has no kernel stamps: the kernel sees records, not the bytes in them."""

    tls = True

    def __init__(self, number: int, address: Address, context: ssl.SSLContext, host: str) -> None:
        super().__init__(number, address, kernel_stamps=False)
        self._context, self._host = context, host

    def advance(self) -> int:
        if self.state is State.OPENING:
            super().advance()
            self.state = State.HANDSHAKE
            self.sock = self._context.wrap_socket(self.sock, server_hostname=self._host, do_handshake_on_connect=False)
        assert isinstance(self.sock, ssl.SSLSocket)
        try:
            self.sock.do_handshake()
        except ssl.SSLWantReadError:
            return READ
        except ssl.SSLWantWriteError:
            return WRITE
        self.state = State.IDLE
        return READ

    def _send_some(self) -> int:
        return self.sock.send(self._out[0])

    def read(self) -> Read:
        try:
            return self.sock.recv(READ_BYTES), [], 0, None
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        except ssl.SSLEOFError:
            return b"", [], 0, None

    def more(self) -> bool:
        return isinstance(self.sock, ssl.SSLSocket) and self.state is not State.CLOSED and self.sock.pending() > 0


def tls_context() -> ssl.SSLContext:
    """Return the platform's trust store (`SSL_CERT_FILE` adds a private one); HTTP/1.1 only, always verified."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
