"""With spares, results that are sure to be needed come in one message, and rounds stay exact."""

from collections import Counter

import numpy as np
import pytest

from mpi_ata import ATAAuto, DrawnTimes, Sqrt, Task, VirtualCluster
from mpi_ata.allocators.interface import NonAdaptive
from mpi_ata.arrays import Array, BoolArray, IntArray
from mpi_ata.clusters import Arrival, Back, Lost
from mpi_ata.methods import SGD
from mpi_ata.times import Constant
from mpi_ata.updates import Plain
from tests.allocators.scene import play_rounds

TASKS = 8  # numbers of a worker in the result


class Named:
    """A result has a 1 in the place of its task."""

    def __init__(self, n: int) -> None:
        self.x0 = np.zeros(n * TASKS)

    def gradient(self, x: Array, task: Task) -> Array:
        g = np.zeros_like(x)
        g[task.worker * TASKS + task.number] = 1.0
        return g


class Planned(NonAdaptive):
    """Gives the same quotas in every round, of which some tasks are sure."""

    def __init__(self, budget: int, quota: list[int], sure: list[int]) -> None:
        self.n, self.budget = len(quota), budget
        self.quota, self.sure = np.array(quota), np.array(sure)

    def allocate(self, available: BoolArray) -> IntArray:
        return np.where(available, self.quota, 0)


class Counted(VirtualCluster):
    """Counts messages by the number of results in them."""

    messages: Counter[int]

    def wait_some(self, tasks: int) -> list[Arrival | Lost | Back]:
        some = super().wait_some(tasks)
        self.messages.update(len(found.seconds) for found in some if isinstance(found, Arrival))
        return some


def one_round(
    allocator: Planned, times: list[float], deaths: dict[int, float] | None = None
) -> tuple[Counted, Array]:
    """Return the cluster after a round, and how often each task of each worker was used."""
    problem = Named(allocator.n)
    cluster = Counted(problem, DrawnTimes(Constant(allocator.n, times)), deaths=deaths)
    cluster.messages = Counter()
    method = SGD(problem.x0, allocator, Plain(1.0))
    method.step(cluster)
    return cluster, np.round(-method.x * allocator.budget).reshape(allocator.n, TASKS)


@pytest.mark.parametrize(
    ("sure", "messages"),
    [([4, 3, 0], {4: 1, 3: 1, 1: 2}), ([6, 4, 3], {1: 9}), ([2, 2, 2], {1: 9}), ([0, 0, 0], {1: 9})],
    ids=["enough", "too many", "too few", "none"],
)
def test_sure_tasks_come_in_one_message_and_the_others_one_by_one(
    sure: list[int], messages: dict[int, int]
) -> None:
    cluster, used = one_round(Planned(9, [6, 4, 3], sure), [1.0, 1.5, 2.4])
    assert cluster.messages == messages
    assert used.sum(axis=1).tolist() == [4, 3, 2]
    assert cluster.now() == 4.8
    assert set(used.ravel()) == {0.0, 1.0}, "no result is used twice"


def test_a_late_batch_is_waited_for_once_all_other_results_are_in() -> None:
    cluster, used = one_round(Planned(9, [6, 4, 3], [4, 3, 0]), [1.0, 4.0, 2.4])
    assert cluster.now() == 12.0
    assert used.sum(axis=1).tolist() == [4, 3, 2]
    stopped = cluster.ledger.stopped_time
    assert stopped == pytest.approx([0.8, 0.0, 0.0]), "after 4.8 s, when only the batch was missing"


def test_the_tasks_of_a_worker_that_dies_with_its_batch_are_done_by_others() -> None:
    _, used = one_round(Planned(9, [6, 4, 3], [4, 3, 0]), [1.0, 4.0, 2.4], deaths={1: 9.0})
    assert used.sum() == 9
    assert used[1].sum() == 0
    assert set(used.ravel()) == {0.0, 1.0}


def test_spares_of_some_leave_the_deliveries_of_others_in_one_message() -> None:
    allocator = ATAAuto(17, 100, spares="auto")
    played = play_rounds(allocator, Sqrt(17), 30)
    assert played.quotas[-1].sum() > 100
    assert allocator.sure.max() >= 4, "the fastest does about 15 tasks in a round"
    assert (allocator.sure <= allocator.quota).all()
