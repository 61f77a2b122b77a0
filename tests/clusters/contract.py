"""What every cluster promises, as checks that run on any implementation.

All checks use one scene: three workers whose tasks take 1, 2 and 5 units of time, and a problem
whose results say which tasks they came from.
"""

import numpy as np
import pytest

from mpi_ata.arrays import Array
from mpi_ata.clusters import Arrival, Cluster, in_flight
from mpi_ata.problems import Task, task_streams
from mpi_ata.times import Constant, DrawnTimes

UNITS = (1.0, 2.0, 5.0)
SEED = 3
EVERYONE = np.arange(3)


class Telling:
    """A result identifies its tasks: how many, and sums of their numbers, rounds, points, random numbers."""

    def __init__(self) -> None:
        self.x0 = np.zeros(5)

    def gradient(self, x: Array, task: Task) -> Array:
        return np.array([1, task.number, task.round, x[0], task.rng.random()])


def scene(unit: float, stoppable: bool = True) -> tuple[Telling, DrawnTimes]:
    return Telling(), DrawnTimes(Constant(3, UNITS), SEED, unit, stoppable=stoppable)


def at(value: float) -> Array:
    return np.full(5, value)


def arrival_of(c: Cluster, timeout: float | None = None) -> Arrival:
    arrival = c.wait(timeout)
    assert isinstance(arrival, Arrival)
    return arrival


def check_an_order_together_comes_back_as_one_arrival_with_the_seconds_of_each_task(
    c: Cluster, unit: float
) -> None:
    c.start(np.array([0]), at(7.0), 4, np.array([3]), together=True)
    worker, result, seconds, _ = arrival_of(c)
    draws = [task_streams(SEED).at(4, 0, number).random() for number in range(3)]
    assert worker == 0
    assert result.tolist() == [3, 0 + 1 + 2, 3 * 4, 3 * 7.0, (draws[0] + draws[1]) + draws[2]]
    assert seconds == pytest.approx([unit] * 3, rel=0.5)
    assert c.ledger.worker_time[0] == pytest.approx(sum(seconds))


def check_otherwise_each_task_comes_as_it_finishes(c: Cluster, unit: float) -> None:
    began = c.now()
    c.start(np.array([0]), at(0.0), 1, np.array([3]))
    for number in range(3):
        _, result, seconds, _ = arrival_of(c)
        assert result[:2].tolist() == [1, number]
        assert len(seconds) == 1
        assert c.now() - began == pytest.approx((number + 1) * unit, rel=0.5)


def check_arrivals_come_in_the_order_of_time(c: Cluster, unit: float) -> None:
    c.start(EVERYONE[::-1], at(0.0), 1, np.array([1, 1, 3]))
    times = [c.now()]
    workers = []
    for _ in range(5):
        workers.append(c.wait().worker)
        times.append(c.now())
    assert times == sorted(times)
    assert workers[0] == 0
    assert sorted(workers) == [0, 0, 0, 1, 2]
    assert workers[-1] == 2


def check_each_worker_computes_at_its_own_point(c: Cluster, unit: float) -> None:
    for worker in range(3):
        c.start(np.array([worker]), at(float(worker)), 1)
    assert {worker: result[3] for worker, result, *_ in (arrival_of(c) for _ in range(3))} == {
        0: 0.0,
        1: 1.0,
        2: 2.0,
    }


def check_later_orders_do_not_change_earlier_results(c: Cluster, unit: float) -> None:
    kept = []
    for value in (1.0, 2.0, 3.0):
        c.start(EVERYONE[:2], at(value), 1)
        kept += [arrival_of(c).result for _ in range(2)]
    c.start(np.array([0]), at(4.0), 1, 2)
    kept += [arrival_of(c).result for _ in range(2)]
    assert [result[3] for result in kept] == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0]


def check_waiting_for_nothing_is_an_error(c: Cluster, unit: float) -> None:
    with pytest.raises(RuntimeError, match="nothing is running"):
        c.wait()


def check_a_worker_holds_one_order_at_a_time(c: Cluster, unit: float) -> None:
    c.start(np.array([1]), at(0.0), 1)
    with pytest.raises(RuntimeError, match="one order at a time"):
        c.start(np.array([1]), at(0.0), 1)
    assert c.wait().worker == 1


def check_nothing_arrives_from_a_stopped_order(c: Cluster, unit: float) -> None:
    c.start(EVERYONE, at(0.0), 1, 4)
    assert c.wait().worker == 0
    spent = c.stop(EVERYONE)
    assert spent[2] == pytest.approx(unit, rel=0.5)
    c.start(np.array([2]), at(0.0), 2)
    worker, result, *_ = arrival_of(c)
    assert (worker, result[2]) == (2, 2)
    with pytest.raises(RuntimeError, match="nothing is running"):
        c.wait()


def check_stopped_work_counts_as_worker_time_and_as_stopped(c: Cluster, unit: float) -> None:
    c.start(EVERYONE, at(0.0), 1, 4)
    _, _, seconds, _ = arrival_of(c)
    c.stop(EVERYONE)
    c.start(EVERYONE, at(0.0), 2)
    later = {worker: times for worker, _, times, _ in (arrival_of(c) for _ in range(3))}
    assert c.ledger.stopped.tolist() == [1, 1, 1]
    own = [sum(later[worker]) for worker in range(3)]
    own[0] += sum(seconds)
    assert c.ledger.worker_time == pytest.approx(own + c.ledger.stopped_time)
    assert c.ledger.stopped_time[1:] == pytest.approx([unit, unit], rel=0.5)


def check_an_order_stopped_inside_counts_every_task_that_was_begun(c: Cluster, unit: float) -> None:
    c.start(np.array([0]), at(0.0), 1, np.array([9]), together=True)
    c.start(np.array([1]), at(0.0), 1)
    assert c.wait().worker == 1
    assert c.stop(np.array([0]))[0] == pytest.approx(2 * unit, rel=0.5)
    c.start(np.array([0]), at(0.0), 2)
    c.wait()
    assert c.ledger.stopped[0] in (2, 3)  # it was stopped at the end of its second task, or just after it


def check_stopping_an_idle_worker_changes_nothing(c: Cluster, unit: float) -> None:
    assert c.stop(EVERYONE).tolist() == [0, 0, 0]
    assert c.ledger.stopped.tolist() == [0, 0, 0]
    assert c.ledger.worker_time.tolist() == [0, 0, 0]


def check_tasks_of_a_round_are_numbered_across_orders(c: Cluster, unit: float) -> None:
    numbers = []
    for round in (1, 1, 2):
        c.start(np.array([0]), at(0.0), round, 2)
        numbers += [arrival_of(c).result[1] for _ in range(2)]
    assert numbers == [0, 1, 2, 3, 0, 1]


def check_a_stopped_task_is_not_given_again_in_its_round(c: Cluster, unit: float) -> None:
    c.start(np.array([0, 2]), at(0.0), 1, 1)
    assert c.wait().worker == 0
    c.stop(np.array([2]))
    c.start(np.array([2]), at(0.0), 1)
    assert arrival_of(c).result[1] == 1


def check_waiting_may_have_a_timeout(c: Cluster, unit: float) -> None:
    began = c.now()
    c.start(np.array([2]), at(0.0), 1)
    with pytest.raises(TimeoutError):
        c.wait(timeout=unit)
    assert unit <= c.now() - began < 4 * unit
    assert c.wait(timeout=60 * unit).worker == 2


def check_a_worker_without_an_order_is_idle(c: Cluster, unit: float) -> None:
    assert c.idle().tolist() == [0, 1, 2]
    c.start(np.array([0, 2]), at(0.0), 1)
    assert c.idle().tolist() == [1]
    assert c.wait().worker == 0
    assert c.idle().tolist() == [0, 1]
    c.stop(np.array([2]))
    assert c.idle().tolist() == [0, 1, 2]


def check_a_result_belongs_to_its_receiver(c: Cluster, unit: float) -> None:
    c.start(np.array([0]), at(0.0), 1)
    result = arrival_of(c).result
    result *= 2
    assert result[0] == 2


def check_accounts_resume_from_an_earlier_state(c: Cluster, unit: float) -> None:
    c.start(np.array([0, 1]), at(0.0), 1)
    c.wait()
    c.stop(np.array([1]))
    c.start(np.array([1]), at(0.0), 2)
    c.wait()
    state = {name: np.array(array) for name, array in c.state().items()}
    spent, stopped = c.ledger.worker_time.tolist(), c.ledger.stopped.tolist()
    c.start(np.array([0]), at(0.0), 3)
    c.wait()
    c.restore(state)
    assert c.ledger.worker_time.tolist() == spent
    assert c.ledger.stopped.tolist() == stopped == [0, 1, 0]
    c.start(np.array([0]), at(0.0), 4)
    c.wait()
    assert c.ledger.worker_time[0] > spent[0]
    assert state["worker_time"].tolist() == spent


def check_a_saved_state_says_who_had_begun_a_task(c: Cluster, unit: float) -> None:
    assert in_flight(c.state()).tolist() == [0, 0, 0]
    c.start(np.array([0, 2]), at(0.0), 1)
    assert in_flight(c.state()).tolist() == [1, 0, 1]
    assert c.wait().worker == 0
    assert in_flight(c.state()).tolist() == [0, 0, 1]


def check_tasks_in_flight_at_a_break_continue_or_are_lost(c: Cluster, unit: float) -> None:
    c.start(np.array([0, 2]), at(0.0), 1)
    state = c.state()
    for _ in range(2):
        c.wait()
    assert in_flight(c.state()).tolist() == [0, 0, 0]
    before = c.ledger.mark()
    c.restore(state)
    assert (in_flight(c.state()) + c.ledger.changes(before).lost).tolist() == [1, 0, 1]


def check_what_was_stopped_is_a_change_since_a_mark(c: Cluster, unit: float) -> None:
    before = c.ledger.mark()
    c.start(np.array([0, 2]), at(0.0), 1)
    c.wait()
    c.stop(np.array([2]))
    c.start(np.array([2]), at(0.0), 2)
    c.wait()
    stopped, lost, seconds = c.ledger.changes(before)
    assert (stopped.tolist(), lost.tolist()) == ([0, 0, 1], [0, 0, 0])
    assert seconds == c.ledger.stopped_time.sum() > 0
    assert c.ledger.changes(c.ledger.mark()).stopped.tolist() == [0, 0, 0]


def check_closing_twice_is_fine(c: Cluster, unit: float) -> None:
    c.start(EVERYONE, at(0.0), 1)
    c.close()
    c.close()


CHECKS = [check for name, check in list(globals().items()) if name.startswith("check_")]
