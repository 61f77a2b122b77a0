"""How the manager asks a worker for the point that workers have moved."""

import time
from collections.abc import Callable

from mpi_ata.clusters.channel import FETCH, REPLICA, Message
from mpi_ata.clusters.connections import Connections
from mpi_ata.clusters.exchange.replica import Replica
from mpi_ata.errors import LossError
from mpi_ata.packing import Packed

PATIENCE = 3.0  # seconds after which one more worker is asked: the others may be busy with a task, or hang


def fetched(connections: Connections, replica: Replica, expired: Callable[[], bool]) -> Packed:
    """Return point and state from the first worker that answers; LossError if all that have it have died.

    All other messages are read again later.
    """
    asked, others, dead = set[int](), list[Message](), connections.find_dead()
    unasked = [
        worker for worker in sorted(replica.fresh, reverse=True) if connections.rank[worker] not in dead
    ]
    try:
        while asked - connections.find_dead() or unasked:
            if unasked:
                asked.add(_ask(connections, unasked.pop(), replica.round))
            if (answer := _answer(connections, asked, others, expired)) is not None:
                return answer
    finally:
        connections.postponed[:0] = others
    lost = f"all workers that have the point of round {replica.round} are lost"
    raise LossError(f"{lost}; resume the run from what it saved")


def _ask(connections: Connections, worker: int, round: int) -> int:
    """Ask a worker for the point after this round, and return its rank."""
    connections.channel.send(connections.rank[worker], FETCH, round=round)
    connections.ring[worker]()
    return connections.rank[worker]


def _answer(
    connections: Connections,
    asked: set[int],
    others: list[Message],
    expired: Callable[[], bool],
) -> Packed | None:
    """Return what one of these ranks answers; None if all have died, or after a while."""
    until = time.perf_counter() + PATIENCE
    while asked - connections.find_dead() and (now := time.perf_counter()) < until:
        message = connections.next_message(min(until, now + 1.0), expired)
        if message is not None and message.kind == REPLICA and message.sender in asked:
            return message.payload
        others += [] if message is None else [message]
    return None
