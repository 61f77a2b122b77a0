"""How the manager asks a worker for the point that workers have moved."""

import time
from collections.abc import Callable

from mpi_ata.clusters.channel import FETCH, LOST, REPLICA, Message
from mpi_ata.clusters.connections import Connections
from mpi_ata.clusters.exchange.replica import Replica
from mpi_ata.errors import LossError
from mpi_ata.packing import Packed

PATIENCE = 30.0  # seconds for which a worker may be busy with a task


def fetched(connections: Connections, replica: Replica, expired: Callable[[], bool]) -> Packed:
    """Return point and state from the first worker that answers; LossError if none does."""
    for worker in sorted(replica.fresh):
        if connections.rank[worker] in connections.find_dead():
            continue
        connections.channel.send(connections.rank[worker], FETCH, round=replica.round)
        connections.ring[worker]()
        if (message := _answer(connections, connections.rank[worker], expired)) is not None:
            return message.payload
    lost = f"all workers that have the point of round {replica.round} are lost"
    raise LossError(f"{lost}; resume the run from what it saved")


def _answer(connections: Connections, rank: int, expired: Callable[[], bool]) -> Message | None:
    """Return a rank's answer; None if it has died or takes too long.  All else is read again later."""
    others, until = list[Message](), time.perf_counter() + PATIENCE
    try:
        while (now := time.perf_counter()) < until:
            message = connections.next_message(now + 1.0, expired)
            if message is None:
                continue
            if message.kind == REPLICA and message.sender == rank:
                return message
            others.append(message)
            if message.kind == LOST and message.sender == rank:
                return None
        return None
    finally:
        connections.postponed += others
