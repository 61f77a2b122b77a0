"""A sum shared by workers that all send to each other: each adds up one part of it.

First, each worker gets its part from all others and adds it up in the order of the workers; then it sends the
result to all others.  Each network card carries 2 (n - 1) / n times the size of the array in each direction:
as little as possible.  A worker sends to one other after the other, each beginning with the one after it, so
that no two send to the same one at once: that would fill the queues of switches.
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
    others = [ranks[(i + turn) % n] for turn in range(1, n)]
    coming = {other: np.empty_like(given[rank]) for other in others}
    links.transfer({to: as_bytes(given[to]) for to in others}, _bytes_of(coming), idle)
    coming[rank] = given[rank]
    np.copyto(sums[rank], coming[ranks[0]])
    for other in ranks[1:]:
        sums[rank] += coming[other]
    own_part = as_bytes(sums[rank])
    links.transfer(dict.fromkeys(others, own_part), _bytes_of({to: sums[to] for to in others}), idle)


def _bytes_of(arrays: dict[int, Array]) -> dict[int, memoryview]:
    return {rank: as_bytes(array) for rank, array in arrays.items()}


def _split(array: Array, ranks: tuple[int, ...]) -> dict[int, Array]:
    """Return the part of an array that each rank adds up."""
    return dict(zip(ranks, np.array_split(array.reshape(-1), len(ranks)), strict=True))
