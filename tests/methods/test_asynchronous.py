"""Asynchronous SGD, with quotas and greedy, on the virtual cluster."""

import pytest

from mpi_ata.clusters import VirtualCluster
from mpi_ata.driver.trace import Trace
from mpi_ata.job.component import LAWS
from mpi_ata.methods import ASGD, Method, Ringmaster
from mpi_ata.times import DrawnTimes
from mpi_ata.updates import Plain
from tests.methods.scene import Fixed, Ramp, Recording, cluster_of, counts


def test_a_round_of_asgd_by_hand() -> None:
    problem, allocator = Ramp(), Fixed([2, 1, 0])
    cluster = cluster_of(problem, [1.0, 1.5, 9.0])
    method = ASGD(problem.x0, allocator, Plain(0.5))
    round = method.step(cluster)
    # At 1 worker 0 gives (8, 1), taken at (8, 0): x = (4, -0.5), from where it continues.  At 1.5 worker 1
    # gives (8, 2), one update old: x = (0, -1.5).  At 2 worker 0 gives (4, 1), from (4, -0.5): x = (-2, -2).
    assert method.x.tolist() == [-2.0, -2.0]
    assert (method.k, round.number, round.quota.tolist()) == (1, 1, [2, 1, 0])
    assert round.delays.tolist() == [0, 1, 1]
    assert counts(round) == ([2, 1, 0], [2, 1, 0], [0, 0, 0], [0, 0, 0])
    assert (round.duration, round.waste) == (2.0, 0.0)
    assert allocator.diary == [(0, [1.0], []), (1, [1.5], []), (0, [1.0], [])]
    assert cluster.idle().tolist() == [0, 1, 2]


def test_a_round_of_ringmaster_by_hand() -> None:
    problem = Ramp()
    cluster = cluster_of(problem, [1.0, 1.5, 9.0])
    method = Ringmaster(problem.x0, 3, Plain(0.5), delay=2, budget=3)
    first = method.step(cluster)
    # At 1 worker 0 gives (8, 1): x = (4, -0.5), which is update 1.  At 1.5 worker 1 gives (8, 2), one update
    # old: x = (0, -1.5), update 2.  Worker 2 began two updates ago: it is stopped and starts again.  At 2
    # worker 0 gives (4, 1), one update old: x = (-2, -2), update 3.
    assert method.x.tolist() == [-2.0, -2.0]
    assert first.delays.tolist() == [0, 1, 1]
    assert counts(first) == ([2, 1, 1], [2, 1, 0], [0, 0, 1], [0, 0, 0])
    assert (first.duration, first.waste) == (2.0, 1.5)
    assert first.quota.tolist() == [2, 1, 0]
    second = method.step(cluster)
    # Workers 0 and 1 are both due at 3, and worker 0 is taken first, by (-2, 1): x = (-1, -2.5), update 4.
    # Workers 1 and 2 began with update 2 and are stopped; all start again.  At 4 worker 0 gives (-1, 1):
    # x = (-0.5, -3), update 5.  At 4.5 worker 1 gives (-1, 2), one update old: x = (0, -4), update 6, and
    # worker 2, which began with update 4, is stopped again.
    assert method.x.tolist() == [0.0, -4.0]
    assert second.delays.tolist() == [0, 0, 1]
    assert counts(second) == ([2, 2, 2], [2, 1, 0], [0, 1, 2], [0, 0, 0])
    assert (second.duration, second.waste) == (2.5, 3 * 1.5)
    assert (method.k, method.s, method.allocator) == (2, 6, None)
    assert cluster.idle().size == 0


def settled(method: Method, cluster: VirtualCluster, rounds: int) -> tuple[Trace, list[int]]:
    """Return the trace of some rounds, with everything stopped at the end, and all delays."""
    trace, delays = Trace(), list[int]()
    for _ in range(rounds):
        round = method.step(cluster)
        trace.add(round, cluster.ledger)
        delays += round.delays.tolist()
    before = cluster.ledger.mark()
    cluster.close()
    trace.settle(cluster.ledger, before)
    return trace, delays


@pytest.mark.parametrize("delay", [1, 2, 5, 20])
def test_ringmaster_uses_no_gradient_that_is_too_old_and_accounts_for_all(delay: int) -> None:
    problem = Recording()
    cluster = VirtualCluster(problem, DrawnTimes(LAWS["linear"](9, 1.0), seed=4))
    trace, delays = settled(Ringmaster(problem.x0, 9, Plain(0.01), delay, budget=11), cluster, 30)
    assert max(delays) < delay
    assert delay > 9 or max(delays) == delay - 1, "the oldest that may be used are"
    assert len(delays) == trace.used == len(problem.tasks) == 30 * 11
    assert trace.largest_delay == max(delays)
    assert trace.wasted == cluster.ledger.stopped.sum() >= 9
    assert trace.worker_time == pytest.approx(9 * cluster.now()), "everyone is always busy"
    assert trace.waste == pytest.approx(cluster.ledger.stopped_time.sum())


def test_a_task_of_an_earlier_round_keeps_its_round() -> None:
    problem = Recording()
    cluster = cluster_of(problem, [1.0, 10.5])
    method = Ringmaster(problem.x0, 2, Plain(0.01), delay=100, budget=4)
    for _ in range(3):
        method.step(cluster)
    assert (1, 1, 0) in problem.tasks[10:], "worker 1 began in round 1 and arrives in round 3"
