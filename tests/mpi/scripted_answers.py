"""A manager whose workers are scripted: asserts what it makes of odd answers, late stops and the end."""

# ruff: noqa: N802  (the names are those of MPI)

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mpi_ata.arrays import Array
from mpi_ata.clusters import Arrival, FaultPolicy, Lost, Task
from mpi_ata.clusters.interface import ClusterSettings
from mpi_ata.clusters.mpi.channel import ARRIVAL, END, HEADER, ORDER, READY, STOPPED
from mpi_ata.clusters.mpi.manager import MPICluster

N, SECONDS, WITHIN = 3, 1e-4, 0.5  # within: seconds that this process may lose between two lines
Answer = Callable[["Ranks", int, int, int], None]  # called with the rank, and number and tasks of its order
NAN, INF = float("nan"), float("inf")


class Ranks:
    """Stands for a communicator whose other ranks answer at once, as a script says."""

    def __init__(self) -> None:
        self.answers: dict[int, Answer] = {}  # by worker, to orders; others do what they are asked for
        self.at_trial: dict[int, int] = {}  # numbers of orders that end with the run, by worker
        self._inbox: list[bytes] = []
        for rank in range(1, N + 1):
            self.put(rank, READY)

    def put(
        self, rank: int, kind: int, order: int = 0, tasks: int = 0, seconds: Any = (), result: Any = ()
    ) -> None:
        """Let the manager have a message."""
        data = np.array([*seconds, *result], np.float64).tobytes()
        header = HEADER.pack(rank, kind, order, 1, tasks, len(seconds), 8 * len(result), -1, -1, 0, 0)
        self._inbox.append(header + data)

    def Isend(self, part: bytes, to: int, tag: int) -> "Ranks":
        """Answer a message."""
        _, kind, number, _, tasks, *_ = HEADER.unpack_from(part)
        if kind == ORDER:
            self.answers.get(to - 1, do_tasks)(self, to, number, tasks)
        elif kind == END:
            if to - 1 in self.at_trial:
                self.put(to, STOPPED, self.at_trial[to - 1], 1, [SECONDS])
            self.put(to, END)
        return self

    def Test(self) -> bool:
        """Return that a message is sent."""
        return True

    def Recv_init(self, buffer: bytearray, source: int, tag: int) -> "Incoming":
        """Return a request for the next message."""
        return Incoming(self._inbox, buffer)

    def Get_size(self) -> int:
        """Return how many there are, with the manager."""
        return N + 1

    def Get_rank(self) -> int:
        """Return that of the manager."""
        return 0

    def Allgather(self, own: Any, everyone: Any) -> "Ranks":
        """Let all ranks say the same."""
        everyone[:] = own
        return self

    Iallgather = Allgather

    def Gather(self, own: Any, everyone: Any, root: int) -> None:
        """Do nothing: no rank can reach the manager otherwise."""

    def Send(self, part: bytes, to: int, tag: int) -> None:
        """Do nothing: no rank waits to begin."""


class Incoming:
    """A request for messages, or one of them."""

    def __init__(self, inbox: list[bytes], buffer: bytearray) -> None:
        self._inbox, self._buffer = inbox, buffer

    def Test(self) -> bool:
        """Return whether there is a message, in the buffer."""
        if self._inbox:
            self.Recv(self._buffer)
            return True
        return False

    def Testsome(self, requests: "list[Incoming]") -> list[int] | None:
        """Return which of these requests, which are all alike, have a message."""
        return [0] if requests[0].Test() else None

    def Recv(self, buffer: bytearray) -> None:
        """Take the next message."""
        message = self._inbox.pop(0)
        buffer[: len(message)] = message

    def Start(self) -> None:
        """Do nothing, like the following: nothing is pending."""

    Cancel = Wait = Free = Start


class Flat:
    """A problem that nobody computes."""

    x0: Array = np.zeros(2)

    def gradient(self, x: Array, task: Task) -> Array:
        """Return x."""
        return x


def do_tasks(ranks: Ranks, rank: int, number: int, tasks: int) -> None:
    """Answer an order as a worker would, with its rank as result."""
    ranks.put(rank, ARRIVAL, number, tasks, [SECONDS] * tasks, [float(rank)] * 2)


def say_nothing(ranks: Ranks, rank: int, number: int, tasks: int) -> None:
    """Answer nothing, until the end of the run."""
    ranks.at_trial[rank - 1] = number


def cluster_of(ranks: Any) -> MPICluster:
    """Return a cluster that gives the tasks of bad results to others."""
    return MPICluster(ranks, ClusterSettings(Flat(), policy=FaultPolicy(on_bad_result="reissue")))


def started(ranks: Ranks, counts: list[int]) -> MPICluster:
    """Return a cluster in its first round."""
    cluster = cluster_of(ranks)
    cluster.start(np.arange(N), np.zeros(2), 1, np.array(counts), together=True)
    return cluster


def found_in(cluster: MPICluster, count: int) -> list[Any]:
    """Return the next things that are found."""
    found: list[Any] = []
    while len(found) < count:
        found += cluster.wait_some(N + 1)
    return found


def check_good_results() -> None:
    """All results of a round come as one list."""
    cluster = started(Ranks(), [1, 2, 1])
    found: list[Any] = cluster.wait_some(4)
    assert [each.worker for each in found] == [0, 1, 2]
    assert all(isinstance(each, Arrival) and 0.0 <= each.overhead < 1.0 for each in found)
    assert [each.result.tolist() for each in found] == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    assert [each.seconds for each in found] == [[SECONDS], [SECONDS] * 2, [SECONDS]]
    assert cluster.ledger.worker_time.tolist() == [SECONDS, 2 * SECONDS, SECONDS]
    assert cluster.ledger.stats.state()["tasks"].tolist() == [1, 2, 1]
    assert cluster.idle().tolist() == [0, 1, 2]
    cluster.close()


def check_bad_results() -> None:
    """A result that cannot be used is rejected, and no other one with it."""
    for tasks, seconds, result in (
        (2, [-1.0, 1.5], 1.0),
        (2, [0.0, 9.0], 1.0),
        (2, [0.0, NAN], 1.0),
        (2, [0.0, 0.0], NAN),
        (2, [0.0, 0.0], INF),
        (3, [0.0, 0.0, 0.0], 1.0),
        (2, [0.0], 1.0),
        (0, [], 1.0),
    ):
        ranks, what = Ranks(), (tasks, seconds, result)
        answer = ARRIVAL, tasks, seconds, [1.0, result]
        ranks.answers[1] = lambda ranks, rank, number, _, a=answer: ranks.put(rank, a[0], number, *a[1:])  # type: ignore[misc]
        cluster = started(ranks, [1, 2, 1])
        found = found_in(cluster, 3)
        assert sorted(each.worker for each in found if isinstance(each, Arrival)) == [0, 2], what
        (lost,) = (each for each in found if isinstance(each, Lost))
        assert (lost.worker, lost.kind) == (1, "bad-result"), what
        assert cluster.ledger.stopped.tolist() == [0, len(seconds), 0], what
        assert cluster.ledger.stats.state()["tasks"].tolist() == [1, 0, 1], what
        assert 0.0 <= cluster.ledger.worker_time[1] < 1.0, what
        assert cluster.available.tolist() == [True, False, True], what
        ranks.at_trial.clear()
        cluster.close()


def stopped_for(seconds: float) -> tuple[Ranks, MPICluster]:
    """Return a cluster whose worker 0 has not confirmed a stop for this long; after 100 s, it hangs."""
    ranks = Ranks()
    ranks.answers[0] = say_nothing
    cluster: Any = cluster_of(ranks)
    cluster.start(np.array([0]), np.zeros(2), 1)
    cluster.stop(np.array([0]))
    cluster._hangs = lambda worker, seconds: seconds > 100.0
    pass_time(cluster, seconds)
    stopped = cluster._ranks.stopping[0]
    stopped.latest = stopped.since
    return ranks, cluster


def pass_time(cluster: Any, seconds: float) -> None:
    """Let the stop have been so much earlier."""
    cluster._ranks.stopping[0].since -= seconds


def check_overruns() -> None:
    """The time on a stopped task is reported as it passes, and corrected when more is known."""
    ranks, cluster = stopped_for(20.0)
    reported = cluster.overruns()[0]
    assert reported == pytest.approx(20.0, abs=WITHIN)
    assert cluster.overruns()[0] == pytest.approx(0.0, abs=WITHIN)
    cluster.close()

    ranks, cluster = stopped_for(20.0)
    reported = cluster.overruns()[0]
    pass_time(cluster, 1000.0)  # it hangs: what was reported is taken back, and nothing counted again
    assert cluster.overruns()[0] == -reported
    pass_time(cluster, 1000.0)
    assert cluster.overruns()[0] == 0.0
    cluster.close()

    for seconds, counted in ((20.0, 30.0), (2000.0, 0.0)):  # the worker has the last word, unless it hangs
        ranks, cluster = stopped_for(seconds)
        before = cluster.overruns()[0]
        ranks.put(1, STOPPED, ranks.at_trial.pop(0), 1, [30.0])
        cluster.start(np.array([1]), np.zeros(2), 2)
        assert cluster.wait().worker == 1
        assert before + cluster.overruns()[0] == pytest.approx(counted)
        assert (cluster.ledger.stopped[0], cluster.ledger.stopped_time[0]) == (1, 30.0)
        cluster.close()


def check_trial_at_the_end() -> None:
    """A trial task that the end of the run stops is a stopped task, and no bad result."""
    ranks = Ranks()
    ranks.answers[1] = lambda ranks, rank, number, tasks: ranks.put(
        rank, ARRIVAL, number, 1, [SECONDS], [NAN, NAN]
    )
    cluster: Any = started(ranks, [1, 1, 1])
    found_in(cluster, 3)
    ranks.answers[1] = say_nothing
    round = 1
    while 1 not in ranks.at_trial:
        round += 1
        cluster.start(np.array([0, 2]), np.zeros(2), round, together=True)
        found_in(cluster, 2)
    began = time.perf_counter()
    cluster.close()
    assert time.perf_counter() - began < 1.0
    assert cluster.ledger.stopped.tolist() == [0, 2, 0]
    assert cluster.ledger.lost.tolist() == [0, 0, 0]
    assert cluster.ledger.stopped_time[1] == pytest.approx(2 * SECONDS)
    assert cluster._health.failures[1] == 1
    assert cluster.idle().tolist() == [0, 1, 2]


check_good_results()
check_bad_results()
check_overruns()
check_trial_at_the_end()
print('"all as expected"')
