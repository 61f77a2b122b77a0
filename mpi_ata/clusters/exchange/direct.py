"""A sum shared by workers that all send to each other: each adds up one part of it.

First, each worker gets its part from all others and adds it up in the order of the workers; then it sends the
result to all others.  Each network card carries 2 (n - 1) / n times the size of the array in each direction:
as little as possible.  At any time, a worker sends to one other and receives from one: several at once would
fill the queues of switches.
"""

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.clusters.exchange.links import Idle, Links
from mpi_ata.clusters.exchange.pieces import as_bytes


def share_directly(
    links: Links, ranks: tuple[int, ...], rank: int, own: Array, total: Array, idle: Idle
) -> None:
    """Put the sum of all workers' results into `total`."""
    given, sums, n = _split(own, ranks), _split(total, ranks), len(ranks)
    i = ranks.index(rank)
    coming = {other: np.empty_like(given[rank]) for other in ranks if other != rank}
    turns = [(ranks[(i + turn) % n], ranks[i - turn]) for turn in range(1, n)]
    for to, sender in turns:
        _swap(links, to, given[to], sender, coming[sender], idle)
    coming[rank] = given[rank]
    np.copyto(sums[rank], coming[ranks[0]])
    for other in ranks[1:]:
        sums[rank] += coming[other]
    for to, sender in turns:
        _swap(links, to, sums[rank], sender, sums[sender], idle)


def _swap(links: Links, to: int, given: Array, sender: int, coming: Array, idle: Idle) -> None:
    """Send to one rank and receive from another, until both have what they expect."""
    links.transfer({to: as_bytes(given)}, {sender: as_bytes(coming)}, idle)
    # What is sent may still be on its way: without this, it would share a link with the next turn.
    links.transfer({sender: memoryview(b"!")}, {to: memoryview(bytearray(1))}, idle)


def _split(array: Array, ranks: tuple[int, ...]) -> dict[int, Array]:
    """Return the part of an array that each rank adds up."""
    return dict(zip(ranks, np.array_split(array.reshape(-1), len(ranks)), strict=True))
