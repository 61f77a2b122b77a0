"""A sum shared by workers that all send to each other: each adds up one part of it.

First, each worker gets its part from all others and adds it up in the order of the workers; then it sends the
result to all others.  Each network card carries 2 (n - 1) / n times the size of the array in each direction:
as little as possible.  Workers take turns: in each turn, a worker sends to one other and receives from one.
Several at once would fill the queues of switches.
"""

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.clusters.exchange.links import Idle, Links
from mpi_ata.clusters.exchange.pieces import as_bytes

TAIL = 1 << 17  # bytes of a turn that may still be under way when the next turn begins


def share_directly(
    links: Links, ranks: tuple[int, ...], rank: int, own: Array, total: Array, idle: Idle
) -> None:
    """Put the sum of all workers' results into `total`."""
    given, sums, n = _split(own, ranks), _split(total, ranks), len(ranks)
    i = ranks.index(rank)
    coming = {other: np.empty_like(given[rank]) for other in ranks if other != rank}
    turns = [(ranks[(i + turn) % n], ranks[i - turn]) for turn in range(1, n)]
    _take_turns(links, turns, given, coming, idle)
    coming[rank] = given[rank]
    np.copyto(sums[rank], coming[ranks[0]])
    for other in ranks[1:]:
        sums[rank] += coming[other]
    _take_turns(links, turns, dict.fromkeys(ranks, sums[rank]), sums, idle)


def _take_turns(
    links: Links, turns: list[tuple[int, int]], given: dict[int, Array], coming: dict[int, Array], idle: Idle
) -> None:
    """Send to one rank and receive from another in each turn.

    A rank that has received all but the tail of a turn's data notifies the sender, which then begins the next
    turn.  So a process that wakes up a little late leaves no link idle.
    """
    tails: dict[int, memoryview] = {}
    for to, sender in turns:
        data = as_bytes(coming[sender])
        # If both are the same rank, its notification comes after its data, so all of these are read first.
        head = len(data) if to == sender else max(len(data) - TAIL, 0)
        links.transfer({to: as_bytes(given[to])}, tails | {sender: data[:head]}, idle)
        # Data may still be under way: without this, all of them would share a link with the next turn.
        links.transfer({sender: memoryview(b"!")}, {to: memoryview(bytearray(1))}, idle)
        tails = {sender: data[head:]}
    links.transfer({}, tails, idle)


def _split(array: Array, ranks: tuple[int, ...]) -> dict[int, Array]:
    """Return the part of an array that each rank adds up."""
    return dict(zip(ranks, np.array_split(array.reshape(-1), len(ranks)), strict=True))
