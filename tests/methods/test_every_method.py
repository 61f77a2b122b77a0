"""What every method promises, on the virtual cluster."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mpi_ata import methods
from mpi_ata.allocators import GTA, Allocator, ATAAuto, ATAEmpirical
from mpi_ata.arrays import Array
from mpi_ata.clusters import VirtualCluster
from mpi_ata.errors import RunError
from mpi_ata.job.component import LAWS
from mpi_ata.methods import ASGD, SGD, HeterogeneousDataSGD, Malenia, Method, MindFlayer, Ringmaster
from mpi_ata.methods.interface import MethodAbilities
from mpi_ata.problems import Quadratic
from mpi_ata.times import DrawnTimes
from mpi_ata.updates import Plain
from tests.methods.scene import Fixed, Ramp, Recording, cluster_of, tasks_of

# Of x0, the allocator, the budget per round, and a step size that suits one update per round.
Make = Callable[[Array, Allocator, float], Method]
QUOTAS: dict[str, Make] = {
    "sgd": lambda x0, allocator, step: SGD(x0, allocator, Plain(step)),
    "mindflayer": lambda x0, allocator, step: MindFlayer(x0, allocator.n, allocator, Plain(step)),
    "heterogeneous-data-sgd": lambda x0, allocator, step: HeterogeneousDataSGD(x0, allocator, Plain(step)),
    "asgd": lambda x0, allocator, step: ASGD(x0, allocator, Plain(step / allocator.budget)),
    "rennala-mvr": lambda x0, allocator, step: methods.RennalaMVR(x0, allocator, Plain(step), a=0.5),
    "heterogeneous-data-asgd": lambda x0, allocator, step: methods.HeterogeneousDataASGD(
        x0, allocator, Plain(step / allocator.budget)
    ),
}
GREEDY: dict[str, Make] = {
    "malenia": lambda x0, allocator, step: Malenia(x0, Plain(step), S=2.0 * allocator.budget),
    "ringmaster": lambda x0, allocator, step: Ringmaster(
        x0, allocator.n, Plain(step / allocator.budget), delay=10, budget=allocator.budget
    ),
    "ringleader": lambda x0, allocator, step: methods.Ringleader(x0, allocator.n, Plain(step / allocator.n)),
    "rescaled-asgd": lambda x0, allocator, step: methods.RescaledASGD(
        x0, allocator.n, Plain(step / allocator.budget), budget=allocator.budget
    ),
}
CASES = [
    *(pytest.param(make, Fixed, id=f"{name}, fixed") for name, make in (QUOTAS | GREEDY).items()),
    *(pytest.param(QUOTAS[name], lambda quota: GTA(len(quota), sum(quota)), id=f"{name}, greedy")
      for name in ("sgd", "mindflayer", "rennala-mvr")),
]  # fmt: skip
AllocatorOf = Callable[[list[int]], Allocator]


@pytest.mark.parametrize(
    ("name", "allocator"),
    [
        *((name, ATAEmpirical) for name in QUOTAS | GREEDY),
        *((name, GTA) for name in ("sgd", "mindflayer", "rennala-mvr")),
    ],
)
def test_it_converges_on_the_quadratic(name: str, allocator: type[ATAEmpirical | GTA]) -> None:
    problem = Quadratic(5, noise=0.01)
    method = (QUOTAS | GREEDY)[name](problem.x0, allocator(7, 5), 0.5)
    cluster = VirtualCluster(tasks_of(method, problem), DrawnTimes(LAWS["sqrt"](7)))
    gap = problem.loss(method.x) - problem.minimum
    for _ in range(400):
        method.step(cluster)
    # The noise alone leaves a gap of about step / 4 * noise^2 / B = 2.5e-6.
    assert gap > 0.1
    assert -1e-15 <= problem.loss(method.x) - problem.minimum < 2.5e-5


@pytest.mark.parametrize(("make", "allocator_of"), CASES)
def test_no_task_is_given_twice(make: Make, allocator_of: AllocatorOf) -> None:
    problem = Recording()
    method = make(problem.x0, allocator_of([4, 1, 2]), 0.01)
    cluster = cluster_of(tasks_of(method, problem), [1.0, 1.3, 2.9])
    used = sum(int(method.step(cluster).used.sum()) for _ in range(6))
    assert used == len(set(problem.tasks))
    assert len(problem.tasks) == used * MethodAbilities.of(method).points_per_task
    assert {task[0] for task in problem.tasks} <= {1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("make", "allocator_of"), CASES)
def test_x_keeps_its_precision_and_no_point_that_was_handed_over_is_written_into(
    make: Make, allocator_of: AllocatorOf, dtype: Any
) -> None:
    problem = Ramp(dtype)
    method = make(problem.x0, allocator_of([2, 1]), 0.5)
    before = method.x
    method.step(cluster_of(tasks_of(method, problem), [1.0, 2.0]))
    assert method.x.dtype == dtype
    assert method.x[0] < 8.0
    assert before.tolist() == problem.x0.tolist() == [8.0, 0.0]
    problem.x0[:] = 5.0
    assert before.tolist() == [8.0, 0.0]


@pytest.mark.parametrize(
    ("method", "instead"),
    [
        (ASGD, "ringmaster"),
        (HeterogeneousDataSGD, "malenia"),
        (methods.HeterogeneousDataASGD, "rescaled-asgd"),
    ],
)
def test_methods_that_use_all_they_order_reject_greedy_allocation(method: Any, instead: str) -> None:
    with pytest.raises(ValueError, match=f"gta .* or {instead}"):
        method(np.zeros(2), GTA(3, 4), Plain(0.5))
    with pytest.raises(ValueError, match="set spares = 'none'"):
        method(np.zeros(1), ATAAuto(3, 4, spares="auto"), Plain(1.0))
    method(np.zeros(1), ATAAuto(3, 4), Plain(1.0))
    problem = Ramp()
    with pytest.raises(RunError, match="gave 12 tasks, but this method needs exactly its budget, 4"):
        method(problem.x0, Fixed([4, 4, 4], budget=4), Plain(0.5)).step(cluster_of(problem, [1.0, 2.0, 3.0]))


@pytest.mark.parametrize(
    ("make", "value"),
    [
        *((lambda S=S: Malenia(np.zeros(2), Plain(0.5), S), f"S={S}") for S in (0.0, -1.0, float("nan"))),
        *(
            (lambda limit=limit: MindFlayer(np.zeros(2), 1, Fixed([1]), Plain(0.5), limit), f"limit={limit}")
            for limit in (1.0, -2.0, float("nan"))
        ),
        (lambda: Ringmaster(np.zeros(2), 3, Plain(0.5), -3, 1), "delay=-3"),
        (lambda: Ringmaster(np.zeros(2), 3, Plain(0.5), 1, 0), "budget=0"),
        (lambda: methods.RescaledASGD(np.zeros(2), 3, Plain(0.5), 0), "budget=0"),
        (lambda: methods.RennalaMVR(np.zeros(2), Fixed([1]), Plain(0.5), 0.0), "a=0.0"),
    ],
)
def test_invalid_values_are_named(make: Callable[[], Method], value: str) -> None:
    with pytest.raises(ValueError, match=value):
        make()
