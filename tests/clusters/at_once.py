"""What clusters of real ranks promise beyond the contract: several arrivals at once."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from mpi_ata.clusters import Arrival
from tests.clusters.contract import EVERYONE, at

if TYPE_CHECKING:  # it starts MPI, which only ranks should do
    from mpi_ata.clusters.manager import MPICluster


def check_what_has_come_is_returned_at_once_up_to_the_tasks_asked_for(c: "MPICluster", unit: float) -> None:
    c.start(EVERYONE, at(0.0), 1, together=True)
    time.sleep(10 * unit)  # the slowest task takes half of that
    found = [c.wait_some(2), c.wait_some(2)]
    assert [len(arrivals) for arrivals in found] == [2, 1]
    assert sorted(arrival.worker for arrivals in found for arrival in arrivals) == [0, 1, 2]


def check_several_tasks_of_one_arrival_count_as_such(c: "MPICluster", unit: float) -> None:
    c.start(EVERYONE[:2], at(0.0), 1, np.array([2, 1]), together=True)
    time.sleep(8 * unit)
    found = [arrival for arrivals in (c.wait_some(1), c.wait_some(2)) for arrival in arrivals]
    assert sorted(len(arrival.seconds) for arrival in found if isinstance(arrival, Arrival)) == [1, 2]
    assert not c.ledger.stopped.any()


CHECKS: list[Callable[["MPICluster", float], None]] = [
    check_what_has_come_is_returned_at_once_up_to_the_tasks_asked_for,
    check_several_tasks_of_one_arrival_count_as_such,
]
