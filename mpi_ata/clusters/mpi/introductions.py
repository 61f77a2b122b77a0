"""How ranks reach each other by TCP, and recognise each other by a secret that travels by MPI alone.

Others may use the same node and network.  Neither side sends the secret: each proves that it knows it, first
the one that connects.  What others send, or do not send, keeps nobody waiting.
"""

import fcntl
import hashlib
import hmac
import ipaddress
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple
from weakref import WeakSet

from mpi_ata.errors import RunError

INTERFACE_VARIABLE = "MPI_ATA_INTERFACE"  # names the network interface, or the network, that ranks listen on
LOOPBACK = "127.0.0.1"
ANSWER_SECONDS = 10.0  # within which the other side of a new connection has to answer
INTRODUCTION_SECONDS = 5.0  # within which one that connects has to introduce itself
PENDING = 64  # strangers who may be connected; the oldest connection makes room for the next
SECRET_BYTES = 16
_WORDS = struct.Struct("<iiq16s")  # sender, receiver, generation, and a number that is used once
_PROOF_BYTES = 32
_SIOCGIFADDR = 0x8915  # asks Linux for the IPv4 address of an interface


class Address(NamedTuple):
    """Where a rank accepts connections."""

    host: str
    port: int


_open: WeakSet[socket.socket] = WeakSet()


def closed_in_children(connection: socket.socket) -> socket.socket:
    """Return a connection that no forked child holds open: it would be, after its parent's death."""
    _open.add(connection)
    return connection


def _close_in_child() -> None:
    for connection in _open:
        connection.close()


os.register_at_fork(after_in_child=_close_in_child)


def own_address(alone: bool) -> str:
    """Return where this rank listens, `alone` if all ranks are on this node; empty: on all interfaces."""
    return LOOPBACK if alone else chosen_address()


def bound_socket(kind: socket.SocketKind, alone: bool) -> socket.socket:
    """Return a socket on a free port, which other nodes can reach unless all ranks are on this one."""
    if address := own_address(alone):
        return _bound(kind, socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    try:
        return _bound(kind, socket.AF_INET6)  # for IPv4 too
    except OSError:  # this node has no IPv6
        return _bound(kind, socket.AF_INET)


def _bound(kind: socket.SocketKind, family: socket.AddressFamily, address: str = "") -> socket.socket:
    found = socket.socket(family, kind)
    try:
        if family == socket.AF_INET6:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        found.setblocking(False)
        found.bind((address, 0))
    except OSError:
        found.close()
        raise
    return closed_in_children(found)


@cache
def chosen_address() -> str:
    """Return the address of the interface that the user has chosen; empty: all of them."""
    if not (wanted := os.environ.get(INTERFACE_VARIABLE, "")):
        return ""
    found = list(_addresses())
    for name, address in found:
        with suppress(ValueError):
            if name == wanted or ipaddress.ip_address(address) in ipaddress.ip_network(wanted, strict=False):
                return address
    known = ", ".join(f"{name} ({address})" for name, address in found)
    raise RunError(
        f"{INTERFACE_VARIABLE}={wanted!r} is neither an interface of this node nor a network that it is in; "
        f"it has {known}"
    )


def _addresses() -> Iterator[tuple[str, str]]:
    """Yield names and addresses of this node's interfaces, as far as Linux lists them."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                yield name, socket.inet_ntoa(answer[20:24])
    with suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, _, _, scope, _, name = line.split()
            if scope != "20":  # which would need the interface with each address
                yield name, str(ipaddress.IPv6Address(int(digits, 16)))


@cache
def datagram_address(host: str, family: socket.AddressFamily) -> str:
    """Return where datagrams for a host are sent from a socket of this family, IPv4 first."""
    with suppress(OSError):
        address = str(socket.getaddrinfo(host, None, socket.AF_INET)[0][4][0])
        return address if family == socket.AF_INET else f"::ffff:{address}"
    return str(socket.getaddrinfo(host, None, family)[0][4][0])


def connect(address: Address) -> socket.socket:
    """Return a connection to a rank; OSError where that is not possible."""
    return socket.create_connection(address, ANSWER_SECONDS)


class Introduction(NamedTuple):
    """Who connects to whom; connections of other generations are not wanted any more."""

    sender: int
    receiver: int
    generation: int
    number: bytes  # used once

    @classmethod
    def new(cls, sender: int, receiver: int, generation: int = 0) -> "Introduction":
        """Return one that nobody has seen."""
        return cls(sender, receiver, generation, secrets.token_bytes(16))

    def signed(self, secret: bytes) -> bytes:
        """Return it as it is sent, with a proof that the sender knows the secret."""
        words = _WORDS.pack(*self)
        return words + _proof(secret, b"connects", words)

    def answer(self, secret: bytes) -> bytes:
        """Return the receiver's proof that it knows the secret too."""
        return _proof(secret, b"accepts", _WORDS.pack(*self))

    def is_answered(self, answer: bytes, secret: bytes) -> bool:
        """Return whether this is the answer of somebody who knows the secret."""
        return hmac.compare_digest(answer, self.answer(secret))


ANSWER_BYTES = _PROOF_BYTES


def _proof(secret: bytes, what: bytes, words: bytes) -> bytes:
    return hmac.digest(secret, what + words, hashlib.sha256)


class Listener:
    """Accepts connections, from so many ranks at once; who cannot introduce itself is turned away."""

    def __init__(self, alone: bool, ranks: int = 1) -> None:
        self._room = PENDING + ranks
        self._socket = bound_socket(socket.SOCK_STREAM, alone)
        self._socket.listen(socket.SOMAXCONN)
        self.port: int = self._socket.getsockname()[1]
        self._pending: dict[socket.socket, tuple[bytearray, float]] = {}  # what has come, and until when

    def accepted(self, rank: int, secret: bytes) -> Iterator[tuple[Introduction, socket.socket]]:
        """Yield the ranks that have introduced themselves to this one since the last call."""
        self._accept()
        for link, (data, until) in list(self._pending.items()):
            if (found := self._read(link, data)) is None and time.monotonic() < until:
                continue
            del self._pending[link]
            who = _introduced(found or b"", secret)
            if who is not None and who.receiver == rank:
                yield who, link
            else:
                link.close()

    def _accept(self) -> None:
        """Take in new connections, as many as may be pending."""
        with suppress(OSError):  # there is none, or it has gone again
            for _ in range(self._room):
                link, _ = self._socket.accept()
                link.setblocking(False)
                if len(self._pending) == self._room:
                    oldest = next(iter(self._pending))
                    del self._pending[oldest]
                    oldest.close()
                self._pending[link] = bytearray(), time.monotonic() + INTRODUCTION_SECONDS

    def _read(self, link: socket.socket, data: bytearray) -> bytes | None:
        """Return the introduction if it is there; an empty one if the connection was closed."""
        size = _WORDS.size + _PROOF_BYTES
        try:
            more = link.recv(size - len(data))
        except BlockingIOError:
            return None
        except OSError:
            return b""
        data += more
        return bytes(data) if len(data) == size or not more else None

    def wait(self, seconds: float) -> None:
        """Wait until something may have come, at most this long."""
        poll = select.poll()  # which has no limit on descriptors
        for each in (self._socket, *self._pending):
            poll.register(each, select.POLLIN)
        poll.poll(1e3 * seconds)

    def close(self) -> None:
        """Accept nobody from now on."""
        self._socket.close()
        for link in self._pending:
            link.close()
        self._pending.clear()


def _introduced(data: bytes, secret: bytes) -> Introduction | None:
    """Return who has sent this, if it is somebody who knows the secret."""
    words, proof = data[: _WORDS.size], data[_WORDS.size :]
    if not hmac.compare_digest(proof, _proof(secret, b"connects", words)):
        return None
    return Introduction(*_WORDS.unpack(words))
