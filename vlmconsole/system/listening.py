"""Which socket listens on a loopback port of this machine. The standard library alone: the load client uses it too."""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from dataclasses import dataclass

#: What a connection to 127.0.0.1 may reach, first what it prefers: that address, any, and IPv6's that take IPv4 too.
_MAPPED = bytes(10) + b"\xff\xff" + bytes([127, 0, 0, 1])
_ADDRESSES = (bytes([127, 0, 0, 1]) + bytes(12), bytes(16), _MAPPED)
_LISTEN = 10
# The kernel's own question about sockets (sock_diag(7)): 15 µs, where /proc/net/tcp takes milliseconds, as that walks
# through the table of all connections.
_SOCK_DIAG, _BY_FAMILY, _DUMP, _ERROR, _DONE = 4, 20, 0x301, 2, 3
_HEAD, _ASKED, _PORTS = struct.Struct("=IHHII"), struct.Struct("=BBBxI"), struct.Struct("!HH")
_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket: its inode, which no two sockets share, and the user who made it."""

    inode: int
    uid: int


def listener(port: int) -> Listener | None:
    """Return the socket that takes connections to `127.0.0.1:port`; None when nobody listens or the system does not
    tell.

    Linux only; elsewhere always None.
    """
    if sys.platform != "linux":
        return None
    listeners: dict[bytes, Listener] = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            listeners |= _asked(port, family)
        except OSError:  # a container without such sockets
            listeners |= _read(port, family)
        if _ADDRESSES[0] in listeners:
            break
    return next((listeners[address] for address in _ADDRESSES if address in listeners), None)


def _asked(port: int, family: int) -> dict[bytes, Listener]:
    """Address (16 bytes) → listener of that port, by a question to the kernel. Raises OSError."""
    asked = _ASKED.pack(family, socket.IPPROTO_TCP, 0, 1 << _LISTEN) + _PORTS.pack(port, 0) + bytes(36) + b"\xff" * 8
    listeners: dict[bytes, Listener] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as kernel:
        kernel.settimeout(_TIMEOUT_S)
        kernel.send(_HEAD.pack(_HEAD.size + len(asked), _BY_FAMILY, _DUMP, 1, 0) + asked)
        while True:
            data, at = kernel.recv(65536), 0
            while at + _HEAD.size <= len(data):
                length, kind, *_ = _HEAD.unpack_from(data, at)
                if kind == _DONE:
                    return listeners
                if kind == _ERROR or length < _HEAD.size:
                    raise OSError(errno.EOPNOTSUPP, "the kernel does not tell who listens")
                # After four bytes of state: ports, both addresses, interface, cookie; then five numbers.
                body = at + _HEAD.size
                if _PORTS.unpack_from(data, body + 4)[0] == port:
                    uid, inode = struct.unpack_from("=II", data, body + 64)
                    listeners[data[body + 8 : body + 24]] = Listener(inode, uid)
                at += (length + 3) & ~3


def _read(port: int, family: int) -> dict[bytes, Listener]:
    """The same from /proc/net/tcp, which lists the listening sockets first."""
    listeners: dict[bytes, Listener] = {}
    try:
        descriptor = os.open(f"/proc/net/tcp{'6' if family == socket.AF_INET6 else ''}", os.O_RDONLY)
    except OSError:
        return listeners
    with open(descriptor, encoding="ascii") as lines:  # noqa: PTH123 - a descriptor
        next(lines, None)
        for line in lines:
            fields = line.split(None, 10)
            if int(fields[3], 16) != _LISTEN:
                break
            address, _, number = fields[1].rpartition(":")
            if int(number, 16) == port:
                words = bytes.fromhex(address)  # each of its words is in the machine's own order of bytes
                order = words if sys.byteorder == "big" else b"".join(
                    words[at : at + 4][::-1] for at in range(0, len(words), 4)
                )  # fmt: skip
                listeners[order.ljust(16, b"\0")] = Listener(int(fields[9]), int(fields[7]))
    return listeners
