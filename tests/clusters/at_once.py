"""What clusters of real ranks promise beyond the contract: several arrivals at once."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from mpi_ata.clusters import Arrival
from mpi_ata.clusters.mpi import channel
from tests.clusters.contract import EVERYONE, at

if TYPE_CHECKING:  # it starts MPI, which only ranks should do
    from mpi_ata.clusters.mpi.manager import MPICluster


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


def check_the_time_after_an_arrival_is_no_overhead_of_it(c: "MPICluster", unit: float) -> None:
    c.start(EVERYONE, at(0.0), 1, np.array([1, 1, 3]), together=True)
    found = c.wait_some(5)  # the last one takes longer than all are waited for at once
    while len(found) < 3:
        found += c.wait_some(3)
    overheads = {each.worker: each.overhead for each in found if isinstance(each, Arrival)}
    assert len(overheads) == 3
    assert max(overheads.values()) < 2 * unit, overheads


def check_all_arrivals_of_a_short_round_come_together(c: "MPICluster", unit: float) -> None:
    c.start(EVERYONE[:2], at(0.5), 1, np.array([2, 1]), together=True)
    found = c.wait_some(3)
    assert len(found) == 2 or at(0.5).nbytes > channel.INLINE
    while len(found) < 2:
        found += c.wait_some(2)
    assert sorted((each.worker, len(each.seconds)) for each in found if isinstance(each, Arrival)) == [
        (0, 2),
        (1, 1),
    ]
    assert len(c.idle()) == 3
    assert c.ledger.stats.state()["tasks"].tolist() == [2, 1, 0]


CHECKS: list[Callable[["MPICluster", float], None]] = [
    check_what_has_come_is_returned_at_once_up_to_the_tasks_asked_for,
    check_several_tasks_of_one_arrival_count_as_such,
    check_the_time_after_an_arrival_is_no_overhead_of_it,
    check_all_arrivals_of_a_short_round_come_together,
]
