"""The method map: B results of any kind per round, by worker and task number, for combine() or a loop."""

import sys
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from mpi_ata import GTA, Fault, FaultPolicy, Map, Stop, TaskResult, VirtualCluster, run
from mpi_ata.clusters import Task
from mpi_ata.errors import RunError
from mpi_ata.packing import from_state
from mpi_ata.times import Constant, DrawnTimes, Sqrt
from tests.methods.scene import Fixed, counts


class Telling:
    """A result says which task it came from, what x was, and one random number; its length differs."""

    x0: ClassVar[Any] = {"sum": 0.0, "seen": []}

    def compute(self, x: Any, task: Task) -> Any:
        length = task.worker + task.number
        return {"task": (task.worker, task.number), "x": x["sum"], "draw": task.rng.random(length)}

    def combine(self, x: Any, results: Sequence[TaskResult]) -> Any:
        total = sum(float(result.value["draw"].sum()) for result in results)
        return {"sum": x["sum"] + total, "seen": [*x["seen"], len(results)]}


def cluster_of(problem: Any, seconds: Sequence[float], **others: Any) -> VirtualCluster:
    return VirtualCluster(problem, DrawnTimes(Constant(len(seconds), tuple(seconds))), **others)


def test_a_round_hands_over_b_results_with_worker_number_and_seconds_in_order() -> None:
    problem = Telling()
    cluster, method = cluster_of(problem, (3.0, 1.0)), Map(problem.x0, Fixed([1, 2]), problem.combine)
    round = method.step(cluster)
    assert [result[:2] for result in round.results] == [(0, 0), (1, 0), (1, 1)]
    assert [result.value["task"] for result in round.results] == [(0, 0), (1, 0), (1, 1)]
    assert [result.seconds for result in round.results] == [3.0, 1.0, 1.0]
    assert [len(result.value["draw"]) for result in round.results] == [0, 1, 2]
    assert method.results == round.results
    assert counts(round) == ([1, 2], [1, 2], [0, 0], [0, 0])
    assert round.duration == 3.0


def test_the_next_round_computes_at_what_combine_returned() -> None:
    problem = Telling()
    method = Map(problem.x0, Fixed([1, 1]), problem.combine)
    cluster = cluster_of(problem, (1.0, 1.0))
    method.step(cluster)
    reached = method.x["sum"]
    assert reached > 0
    assert {result.value["x"] for result in method.step(cluster).results} == {reached}
    assert method.x["seen"] == [2, 2]


def test_without_combine_x_stays_and_a_loop_of_ones_own_moves_it() -> None:
    problem, values = Telling(), []
    method = Map(problem.x0, Fixed([1, 1]))
    cluster = cluster_of(problem, (1.0, 1.0))
    for round in run(method, cluster, stop=Stop(rounds=3)):
        values += [result.value["x"] for result in round.results]
        method.x = {"sum": float(round.number)}
    assert values == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]


def test_greedy_rounds_use_the_first_b_results_and_waste_the_rest() -> None:
    problem = Telling()
    method = Map(problem.x0, GTA(3, budget=3), problem.combine)
    round = method.step(cluster_of(problem, (1.0, 1.5, 10.0)))
    assert [result[:2] for result in round.results] == [(0, 0), (0, 1), (1, 0)]
    assert counts(round)[1:3] == ([2, 1, 0], [1, 1, 1])


def test_tasks_of_a_lost_worker_are_done_by_others() -> None:
    problem = Telling()
    method = Map(problem.x0, Fixed([2, 2]), problem.combine)
    round = method.step(cluster_of(problem, (1.0, 1.0), deaths={1: 1.5}))
    assert [result[:2] for result in round.results] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert counts(round) == ([4, 2], [4, 0], [0, 0], [0, 2])


@pytest.mark.parametrize("what", ["shape", "seconds"])
def test_garbage_instead_of_results_is_noticed_and_done_again(what: str) -> None:
    problem, policy = Telling(), FaultPolicy(on_bad_result="reissue")
    faults = [Fault(0.5, 1, "garbage", what=what)]
    method = Map(problem.x0, Fixed([1, 1]), problem.combine)
    round = method.step(cluster_of(problem, (1.0, 1.0), faults=faults, policy=policy))
    assert [lost.kind for lost in round.losses] == ["bad-result"]
    assert [result.worker for result in round.results] == [0, 0]


def test_a_run_resumed_from_its_state_continues_bit_for_bit() -> None:
    problem, times = Telling(), DrawnTimes(Sqrt(3))
    one, cluster = Map(problem.x0, Fixed([2, 1, 1]), problem.combine), VirtualCluster(problem, times)
    one.step(cluster)
    saved, at = one.state(), cluster.state()
    expected = one.step(cluster)
    other, again = Map(problem.x0, Fixed([2, 1, 1]), problem.combine), VirtualCluster(problem, times)
    other.restore(saved)
    again.restore(at)
    found = other.step(again)
    assert other.x == one.x == from_state(one.state(), "x")
    assert [result.seconds for result in found.results] == [result.seconds for result in expected.results]


def test_orders_in_flight_at_points_of_unequal_size_survive_a_break() -> None:
    problem = Telling()
    cluster = cluster_of(problem, (1.0, 2.0))
    cluster.start(np.array([0]), {"sum": 1.0}, 1)
    cluster.start(np.array([1]), {"sum": 2.0, "more": np.zeros(100)}, 1)
    again = cluster_of(problem, (1.0, 2.0))
    again.restore(cluster.state())
    arrivals = [again.wait() for _ in range(2)]
    assert [arrival.result[0].value["x"] for arrival in arrivals] == [1.0, 2.0]  # type: ignore[union-attr]


class Meddling(Telling):
    """Tasks that write into x."""

    def compute(self, x: Any, task: Task) -> Any:
        x["sum"] += 1.0
        return x["sum"]


def test_a_task_that_changes_its_x_changes_it_for_no_other() -> None:
    problem = Meddling()
    method = Map(problem.x0, Fixed([3]))
    assert [result.value for result in method.step(cluster_of(problem, (1.0,))).results] == [1.0] * 3
    assert problem.x0["sum"] == 0.0


def write(x: Any, task: Task) -> Any:
    x["array"][0] = 1.0


def leave(*arguments: Any) -> Any:
    sys.exit(0)


@pytest.mark.parametrize(
    ("compute", "combine", "more", "rule"),
    [
        (write, None, np.zeros(3), "read-only"),
        (leave, None, 0, r"worker 0 failed in round 1: .*test_map\.py:\d+ calls sys\.exit\(0\)"),
        (None, leave, 0, r"combine\(\) failed: .*test_map\.py:\d+ calls sys\.exit\(0\)"),
        (None, lambda x, results: None, 0, r"combine\(\) returned None instead of the next x"),
        (None, lambda x, results: x["y"], 0, r"(?s)combine\(\) failed.*test_map.py.*KeyError: 'y'"),
        (lambda x, task: [1, {2}], None, 0, r"compute\(\) returned\[1\] is of type set, but a value must"),
        (None, None, print, r"x\['array'\] is of type builtin_function_or_method, but"),
    ],
)
def test_what_the_users_code_must_not_do_is_named(compute: Any, combine: Any, more: Any, rule: str) -> None:
    problem = Telling()
    if compute is not None:
        problem.compute = compute  # type: ignore[method-assign]
    method = Map(problem.x0 | {"array": more}, Fixed([1]), combine)
    with pytest.raises(RunError, match=rule):
        method.step(cluster_of(problem, (1.0,)))
