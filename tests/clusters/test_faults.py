"""What scripted faults do to simulated workers, and what the virtual cluster does about them."""

import logging
import math
from collections.abc import Sequence

import numpy as np
import pytest

from mpi_ata import (
    ATAEmpirical,
    Constant,
    DrawnTimes,
    Fault,
    FaultPolicy,
    Task,
    VirtualCluster,
)
from mpi_ata.arrays import Array, BoolArray, IntArray
from mpi_ata.clusters import Back
from mpi_ata.clusters.computations import finite
from mpi_ata.errors import RunError
from mpi_ata.job.component import LAWS
from mpi_ata.methods import SGD
from mpi_ata.updates import Plain
from tests.methods.scene import Fixed, Ramp, cluster_of

REISSUE = FaultPolicy(on_task_error="reissue", on_bad_result="reissue")


def scripted(*faults: Fault, policy: FaultPolicy = REISSUE, rounds: int = 60) -> tuple[VirtualCluster, SGD]:
    """Three workers who need 1 second for a task, after some rounds by which that is known."""
    problem = Ramp()
    cluster = VirtualCluster(problem, DrawnTimes(LAW), faults=faults, policy=policy)
    method = SGD(problem.x0, Everyone(), Plain(1e-3))
    for _ in range(rounds):
        assert method.step(cluster).duration == 1.0
    return cluster, method


class Everyone(Fixed):
    """One task for each available worker, and the rest for the first of them."""

    def __init__(self) -> None:
        super().__init__([1, 1, 1])

    def allocate(self, available: BoolArray) -> IntArray:
        quota = available.astype(np.int64)
        quota[int(available.argmax())] += 3 - quota.sum()
        return quota


LAW = Constant(3)


def steps(cluster: VirtualCluster, method: SGD, rounds: int) -> list[str]:
    """Return who was lost or came back: the kind, and the round."""
    found = []
    for _ in range(rounds):
        round = method.step(cluster)
        assert round.used.sum() == 3
        found += [f"{lost.kind} {round.number}" for lost in round.losses]
        found += [f"back {round.number}" for _ in round.returns]
    return found


def test_a_hanging_worker_is_overdue_after_ten_times_its_usual_time_and_back_when_it_wakes_up() -> None:
    cluster, method = scripted(Fault(60.5, 1, "hang", duration=30.0))
    round = method.step(cluster)
    (lost,) = round.losses
    assert (lost.worker, lost.tasks, lost.kind) == (1, 1, "overdue")
    # One task of 1 second, with 20 / 60 added since only 60 are known; then another worker needs 1 second.
    assert round.duration == pytest.approx(10 * (1 + 20 / 60) + 1, rel=0.01)
    assert cluster.available.tolist() == [True, False, True]
    found = steps(cluster, method, 30)
    assert found[-1].startswith("back")
    assert cluster.available.all()
    assert cluster.ledger.stopped[1] == 2, "the task that it hung in, and the one that it was tried with"
    assert cluster.ledger.lost.sum() == 0


def test_a_worker_that_hangs_forever_is_reported_once_and_costs_nothing_more() -> None:
    cluster, method = scripted(Fault(60.5, 1, "hang"))
    assert steps(cluster, method, 100) == ["overdue 61"]
    assert cluster.now() < 60 + 15 + 2 * 100
    cluster.close()
    assert cluster.ledger.stopped.tolist() == [0, 1, 0]


def test_a_worker_that_crawls_for_a_while_is_tried_in_growing_intervals_and_back_at_the_end() -> None:
    cluster, method = scripted(Fault(60.5, 1, "slow", duration=100.0, factor=1000.0))
    found = steps(cluster, method, 100)
    assert found[0] == "overdue 61"
    assert found[-1].startswith("back")
    assert len(found) == 3


def test_a_worker_that_stays_slow_is_back_as_a_slower_one() -> None:
    cluster, method = scripted(Fault(60.5, 1, "slow", factor=40.0))
    backs: list[Back] = []
    for _ in range(200):
        backs += method.step(cluster).returns
    assert [back.why for back in backs] == ["40 × slower than before"]
    assert backs[0].seconds == pytest.approx([40.0] * 3)
    assert cluster.available.all()


def test_if_everyone_becomes_slower_the_run_continues() -> None:
    slow = [Fault(60.5, worker, "slow", factor=50.0) for worker in range(3)]
    cluster, method = scripted(*slow)
    steps(cluster, method, 100)
    assert cluster.available.all()


def test_the_last_worker_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    cluster, method = scripted(
        Fault(60.2, 0, "die"), Fault(60.2, 2, "die"), Fault(60.5, 1, "hang", duration=500.0)
    )
    with caplog.at_level(logging.WARNING):
        assert steps(cluster, method, 1) == ["lost 61", "lost 61"]
    assert cluster.now() > 560
    assert caplog.text.count("no other worker is left, so the run waits for it") == 1


def test_where_nobody_will_ever_answer_the_run_ends() -> None:
    cluster, method = scripted(Fault(60.2, 0, "die"), Fault(60.2, 2, "die"), Fault(60.5, 1, "hang"))
    with pytest.raises(RunError, match="none of the workers that have tasks will ever answer"):
        steps(cluster, method, 1)


def test_a_task_that_raises_ends_the_run_with_its_worker_and_round() -> None:
    cluster, method = scripted(Fault(59.5, 1, "raise"), policy=FaultPolicy())
    with pytest.raises(RunError, match="a task of worker 1 failed in round 61"):
        method.step(cluster)


def test_reissued_tasks_are_done_by_others_and_their_worker_is_tried_in_the_next_round() -> None:
    cluster, method = scripted(Fault(59.5, 1, "raise"))
    assert steps(cluster, method, 2) == ["failed 61", "back 62"]
    assert cluster.ledger.stopped.tolist() == [0, 2, 0]


@pytest.mark.parametrize(
    ("what", "text"), [("nan", "NaN"), ("inf", "infinite"), ("shape", "shape"), ("seconds", "times")]
)
def test_garbage_is_never_used(what: str, text: str) -> None:
    fault = Fault(60.5, 1, "garbage", what=what)
    with pytest.raises(RunError, match=rf"worker 1 \(host virtual, slot 1\) in round 61: .*{text}"):
        steps(*scripted(fault, policy=FaultPolicy()), 1)
    cluster, method = scripted(fault)
    assert steps(cluster, method, 2) == ["bad-result 61", "back 62"]
    assert np.isfinite(method.x).all()


def test_an_error_in_a_problem_is_reissued_too() -> None:
    class Broken(Ramp):
        def gradient(self, x: Array, task: Task) -> Array:
            if task.worker == 2:
                raise OSError("no such device")
            return x

    cluster = cluster_of(Broken(), [1.0, 1.0, 1.0], policy=REISSUE)
    method = SGD(np.zeros(2), Everyone(), Plain(0.1))
    losses = [lost for _ in range(20) for lost in method.step(cluster).losses]
    assert {lost.worker for lost in losses} == {2}
    assert losses[-1].kind == "excluded"
    assert losses[-1].why.endswith("OSError: no such device")


def test_orders_of_workers_that_are_not_available_are_lost_in_a_break() -> None:
    cluster, method = scripted(Fault(60.5, 1, "hang", duration=1000.0))
    steps(cluster, method, 1)
    state = cluster.state()
    resumed = VirtualCluster(Ramp(), DrawnTimes(LAW))
    resumed.restore(state)
    assert resumed.available.all()
    assert resumed.idle().tolist() == [0, 1, 2]
    assert resumed.ledger.lost.tolist() == [0, 1, 0]


def test_a_result_is_finite_unless_the_point_itself_is_out_of_range() -> None:
    x = np.zeros(3)
    assert finite(np.array([1.0, 2.0, 3.0]), x)
    assert finite(np.array([1e200, 0.0, 0.0]), x), "although its square overflows"
    assert not finite(np.array([1.0, np.nan, 0.0]), x)
    assert not finite(np.array([1.0, -np.inf, 0.0]), x)
    assert finite(np.array([np.inf, 0.0, 0.0]), np.full(3, 1e200)), "the run has diverged"


@pytest.mark.parametrize(
    "keys",
    [
        {"kind": "sleep"},
        {"kind": "hang", "duration": 0.0},
        {"kind": "slow", "factor": math.inf},
        {"kind": "garbage", "what": "x"},
    ],
)
def test_impossible_faults_are_rejected(keys: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Fault(1.0, 0, **keys)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="worker must be from 0 to 2"):
        scripted(Fault(1.0, 3, "die"), rounds=0)


class Idle:
    """Costs nothing to simulate."""

    x0 = np.zeros(1)

    def gradient(self, x: Array, task: Task) -> Array:
        return x

    def gradients(self, x: Array, tasks: Sequence[Task]) -> Array:
        return x


MACHINES = ("lonestar6", "longhorn", "frontera", "gpu-generations", "bytedance-ar", "bytedance-se")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sqrt", "mix", *MACHINES])
def test_no_false_alarm_in_ten_thousand_healthy_rounds(name: str) -> None:
    # Over 44 runs of this length the largest order took 0.7 times its deadline.
    problem, law = Idle(), LAWS[name](17)
    cluster = VirtualCluster(problem, DrawnTimes(law, seed=7), seed=7, policy=FaultPolicy())
    method = SGD(problem.x0, ATAEmpirical(law.n, 23), Plain(0.1))
    assert not any(method.step(cluster).losses for _ in range(10_000))
