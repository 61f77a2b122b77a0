"""A model of what the exchange of x and gradients costs on a network, for simulations and predictions.

Each network card carries `bandwidth` bytes per second in each direction, anything takes `latency` seconds to
arrive, and rank 0 spends `message` seconds on each order and each report.  All workers are on nodes of their
own, other than rank 0's, and nothing else uses the network.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mpi_ata.arrays import Array, IntArray
from mpi_ata.clusters.bfloat16 import SAVED, halved_numbers
from mpi_ata.errors import RunError

if TYPE_CHECKING:
    from mpi_ata.clusters.virtual import SimulatedOrder

MEGABIT = 1e6 / 8  # bytes
EXCHANGES = ("auto", "star", "chain")  # how x and results may travel
PIECE_BYTES = 1 << 16  # that a chain passes on at once: one of n workers is filled after n pieces
ONE_BY_ONE = (
    "[network] knows rounds whose orders come back as a whole, but this allocator takes the results of an "
    "order one by one; use another allocator, or leave out [network]"
)


def check_exchange(name: object) -> None:
    """Reject an unknown way."""
    if name not in EXCHANGES:
        raise ValueError(f"exchange={name!r} must be one of {', '.join(map(repr, EXCHANGES))}")


class CriticalPath(NamedTuple):
    """What a round of tasks that take no time waits for, one after the other."""

    bytes: float
    hops: float
    messages: float


def path_of(way: str, n: int, size: int, result: int | None = None) -> CriticalPath:
    """Return what is on the longest path of an exchange among n workers: "star" or "chain".

    `size` is that of x in bytes; with the star, `result` is that of a result, if it differs.
    """
    if way == "star":
        return CriticalPath(float(n * (size + (size if result is None else result))), 2, 2 * n)
    return CriticalPath(2.0 * size + (n - 1) * min(PIECE_BYTES, size), n + 1, 2 * n)


@dataclass(frozen=True)
class Network:
    """A network; `bandwidth` is in Mbit/s."""

    bandwidth: float
    latency: float = 0.0
    message: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.bandwidth < math.inf:
            raise ValueError(f"bandwidth={self.bandwidth} must be above 0 Mbit/s")
        for name in ("latency", "message"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 0 seconds")

    def seconds(self, way: str, n: int, size: int) -> float:
        """Return how long n workers take to exchange x of this many bytes, if their tasks take no time."""
        path = path_of(way, n, size)
        return self.carried(path.bytes) + path.hops * self.latency + path.messages * self.message

    def carried(self, size: float) -> float:
        """Return how long a network card takes for this many bytes."""
        return size / (self.bandwidth * MEGABIT)

    def arrivals(self, way: str, size: int, seconds: Array, result: int | None = None) -> Array:
        """Return when orders arrive whose tasks take seconds[j], by "star" or "chain".

        `size` is that of x in bytes; with the star, `result` is that of a result, if it differs.
        """
        if way == "star":
            return self._by_star(size, size if result is None else result, seconds)
        return np.full(len(seconds), self._by_chain(size, seconds))

    def _by_star(self, size: int, result: int, seconds: Array) -> Array:
        """Return when results arrive if they enter rank 0's network card one by one, as x has left it."""
        order, each = (self.carried(bytes) + self.message for bytes in (size, result))
        n = len(seconds)
        came: Array = n * order + 2 * self.latency + seconds
        in_order, place = np.argsort(came, kind="stable"), np.arange(n)
        arrived = np.empty(n)
        arrived[in_order] = (place + 1) * each + np.maximum.accumulate(came[in_order] - place * each)
        return arrived

    def _by_chain(self, size: int, seconds: Array) -> float:
        """Return when the sum arrives, which each worker passes on as soon as it can."""
        n, messages = len(seconds), len(seconds) * self.message
        before, piece = np.arange(n), self.carried(min(PIECE_BYTES, size))
        after = n - 1 - before  # workers that follow in the chain
        has_x = messages + self.carried(size) + before * piece + (before + 1) * self.latency
        passed_on: Array = has_x + seconds + after * piece + (after + 1) * self.latency
        return float(passed_on.max()) + self.carried(size) + messages


@dataclass(frozen=True)
class Traffic:
    """How orders travel on a network, as the key `exchange` of [run] says.

    `halved_x` numbers of x and `halved_results` of a result travel as bfloat16.  If there are any, everything
    goes by the star.
    """

    network: Network
    exchange: str = "auto"
    halved_x: int = 0
    halved_results: int = 0

    def __post_init__(self) -> None:
        check_exchange(self.exchange)

    def way(self, n: int, size: int) -> str:
        """Return how x and the sum of n workers travel; the shorter way, if it is not given."""
        if n < 2 or self.halved_x or self.halved_results:
            return "star"
        if self.exchange != "auto":
            return self.exchange
        return min(("star", "chain"), key=lambda way: self.network.seconds(way, n, size))

    def __call__(self, order: "SimulatedOrder", workers: IntArray, counts: IntArray, seconds: Array) -> Array:
        """Return how much longer orders take that are given now than their tasks do."""
        if not order.together and np.any(counts > 1):
            raise RunError(ONE_BY_ONE)
        size = order.x.nbytes
        way = self.way(len(workers), size) if order.summed else "star"
        sent, returned = (size - SAVED * halved for halved in (self.halved_x, self.halved_results))
        return np.maximum(self.network.arrivals(way, sent, seconds, returned) - seconds, 0.0)


def traffic_of(problem: object, network: Network, exchange: str) -> Traffic:
    """Return how the orders of a problem travel on a network."""
    return Traffic(network, exchange, *halved_numbers(problem))
