"""A run interrupted between two rounds and rebuilt resumes bit for bit as if nothing had happened."""

from typing import Any

import numpy as np
import pytest

from mpi_ata.arrays import State, entry
from mpi_ata.clusters import VirtualCluster
from mpi_ata.job.component import ALLOCATORS, METHODS, UPDATES, Component
from mpi_ata.methods import Method, Round
from mpi_ata.problems import Quadratic
from mpi_ata.times import DrawnTimes, Sqrt
from tests.methods.scene import tasks_of

N, B = 7, 5
SURPLUS = ("gta", "m-sync")  # order more than a round uses
FIXED = [name for name in ALLOCATORS if name not in SURPLUS]
COMBINATIONS: list[tuple[str, str | None]] = [
    *(("sgd", name) for name in ALLOCATORS),
    *(("mindflayer", name) for name in ALLOCATORS),
    *(("heterogeneous-data-sgd", name) for name in FIXED),
    *(("asgd", name) for name in FIXED),
    *(("heterogeneous-data-asgd", name) for name in FIXED),
    *(("rennala-mvr", name) for name in ALLOCATORS),
    ("malenia", None),
    ("ringmaster", None),
    ("ringleader", None),
    ("rescaled-asgd", None),
]
# Every method and allocator with one update, every update with some of them; all pairs are tested if slow.
EACH_UPDATE = [("sgd", "ata-empirical"), ("asgd", "ata"), ("mindflayer", "gta"), ("ringmaster", None)]
CASES = [
    pytest.param(
        *combination,
        update,
        marks=() if update == "plain" or combination in EACH_UPDATE else pytest.mark.slow,
    )
    for combination in COMBINATIONS
    for update in UPDATES
]
KEYS: dict[str, dict[str, Any]] = {
    "ata": {"alpha": 8.0},
    "malenia": {"S": 1.5 * N},
    "ringmaster": {"delay": 6, "budget": B},
    "rescaled-asgd": {"budget": B},
    "rennala-mvr": {"a": 0.3},
    "plain": {"step_size": 0.1, "schedule": "cosine", "warmup": 4, "period": 30, "final_step_size": 0.01},
    "momentum": {"step_size": 0.02},
    "nesterov": {"step_size": 0.02, "warmup": 12},
    "adam": {"step_size": 0.05},
    "lmo": {"step_size": 0.05},
}


def built(method: str, allocator: str | None, update: str = "plain") -> tuple[Method, VirtualCluster]:
    """Return a run at its beginning, on workers of very unequal speed."""
    problem, times = Quadratic(4, noise=1.0), DrawnTimes(Sqrt(N, 1.0), seed=3)
    known = {"x0": problem.x0, "n": N, "seed": 3, "means": times.means}
    if allocator is not None:
        keys = {"budget": B} | KEYS.get(allocator, {})
        known["allocator"] = Component("allocator", ALLOCATORS[allocator], keys).build(**known)
    known["update"] = Component("method", UPDATES[update], KEYS[update]).build()
    made: Method = Component("method", METHODS[method], KEYS.get(method, {})).build(**known)
    return made, VirtualCluster(tasks_of(made, problem), times, seed=3)


def saved(method: Method, cluster: VirtualCluster) -> list[State]:
    """Return all that is saved of a run."""
    return [method.state(), cluster.state(), method.allocator.state() if method.allocator else {}]


def resumed(method: Method, cluster: VirtualCluster, states: list[State]) -> None:
    method.restore(states[0])
    cluster.restore(states[1])
    if method.allocator:
        method.allocator.restore(states[2])


def plain(rounds: list[Round]) -> list[list[Any]]:
    return [[np.asarray(part).tolist() for part in round] for round in rounds]


def bits(states: list[State]) -> list[dict[str, Any]]:
    return [
        {name: (array.shape, array.dtype, array.tobytes()) for name, array in state.items()}
        for state in states
    ]


def steps(method: Method, cluster: VirtualCluster, count: int) -> list[Round]:
    return [method.step(cluster) for _ in range(count)]


@pytest.mark.parametrize(("method", "allocator", "update"), CASES)
@pytest.mark.parametrize("break_after", [0, 1, 9])
def test_interrupted_and_resumed_is_the_same_as_never_interrupted(
    method: str, allocator: str | None, update: str, break_after: int
) -> None:
    whole = built(method, allocator, update)
    rounds = steps(*whole, 20)
    first = built(method, allocator, update)
    before = steps(*first, break_after)
    states = saved(*first)
    bits_then = bits(states)
    steps(*first, 3)
    second = built(method, allocator, update)
    resumed(*second, states)
    assert bits(saved(*second)) == bits_then
    after = steps(*second, 20 - break_after)
    assert bits(states) == bits_then, "what was saved does not change when a run continues"
    assert plain(before + after) == plain(rounds)
    assert bits(saved(*second)) == bits(saved(*whole))
    assert second[0].k == 20
    assert second[1].now() == whole[1].now() > 0


@pytest.mark.parametrize(("method", "allocator"), COMBINATIONS)
def test_a_point_of_another_shape_or_precision_is_rejected(method: str, allocator: str | None) -> None:
    run, _ = built(method, allocator)
    state = run.state()
    with pytest.raises(ValueError, match=r"'x' of the state is float64 of shape \(5,\).*shape \(4,\)"):
        run.restore(state | {"x": np.zeros(5)})
    with pytest.raises(ValueError, match=r"'x' of the state is float32"):
        run.restore(state | {"x": np.zeros(4, np.float32)})
    with pytest.raises(ValueError, match="the state has no"):
        run.restore({"x": state["x"]})
    assert bits([run.state()]) == bits([state])


def test_an_entry_is_a_copy() -> None:
    state = {"x": np.zeros(2)}
    entry(state, "x", np.ones(2))[:] = 5
    assert state["x"].tolist() == [0, 0]
