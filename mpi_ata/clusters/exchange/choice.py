"""Which way x and results of a round travel, decided here alone.

By the star, each worker's x and results pass through the manager's network card, or through memory that
they share.  By the chain, that card carries x and the sum once; but a short way is better for small arrays.
"""

import logging
import math
import time
from collections.abc import Sequence

log = logging.getLogger("mpi_ata")
EXCHANGES = ("auto", "star", "chain")
LEAST = 1 << 16  # bytes of x from which a chain can be better
MOST = 64  # workers that send to each other directly: each has a connection to each
TRIALS = 3  # rounds of each way that "auto" measures


def check_exchange(name: object) -> None:
    """Reject an unknown way."""
    if name not in EXCHANGES:
        raise ValueError(f"exchange={name!r} must be one of {', '.join(map(repr, EXCHANGES))}")


def chain_possible(exchange: str, size: int, own: str, hosts: Sequence[str]) -> bool:
    """Return whether x of this many bytes may go by the chain from a manager to workers on these hosts."""
    if exchange != "auto":
        return exchange == "chain"
    return size >= LEAST and sum(host != own for host in hosts) >= 2


def use_direct(hosts: Sequence[str]) -> bool:
    """Return whether workers on these hosts, which have x, share their sum directly.

    Several workers of one node would each send through its network card.
    """
    return 1 < len(hosts) <= MOST and len(set(hosts)) == len(hosts)


class Choice:
    """Decides for each round; "auto" measures both ways in the first rounds where both make sense.

    Both give the same numbers, bit for bit.
    """

    def __init__(self, exchange: str, host: str, size: int) -> None:
        self._exchange, self._host, self._size = exchange, host, size
        self._rounds = 0  # that were measured, or are being measured
        self._costs = {"chain": math.inf, "star": math.inf}  # least seconds beside the longest tasks
        self._began = self._longest = -1.0  # of the round that is being measured

    def chain(self, hosts: Sequence[str]) -> bool:
        """Return whether a round among workers on these hosts uses the chain."""
        self._began = -1.0
        possible = chain_possible(self._exchange, self._size, self._host, hosts)
        if not possible or self._exchange != "auto":
            return possible
        if self._rounds < 2 * TRIALS:
            self._rounds += 1
            self._began, self._longest = time.perf_counter(), 0.0
        return self._way() == "chain"

    def _way(self) -> str:
        if self._rounds <= TRIALS:
            return "chain"
        trying = self._began >= 0
        return "star" if trying else min(self._costs, key=lambda way: self._costs[way])

    def delivered(self, seconds: float, last: bool) -> None:
        """Note how long the tasks of an order took; `last` if no other order is running."""
        if self._began < 0:
            return
        self._longest = max(self._longest, seconds)
        if last:
            cost, way = time.perf_counter() - self._began - self._longest, self._way()
            self._costs[way] = min(self._costs[way], cost)
            self._began = -1.0
            if self._rounds == 2 * TRIALS:
                costs = {way: f"{seconds:.3g} s" for way, seconds in self._costs.items()}
                log.info("x and results go by the %s: measured per round %s", self._way(), costs)
