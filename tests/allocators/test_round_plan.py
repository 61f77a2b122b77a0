"""The predictions behind plans with spares, against simulated rounds and known laws."""

import numpy as np
import pytest

from mpi_ata.allocators.round_plan import PRICES, plan_exactly, plan_with_spares
from mpi_ata.allocators.task_model import SpeedEstimates, TaskModel
from mpi_ata.arrays import Array, IntArray
from mpi_ata.times import Law, Linear, Sqrt

BUDGET = 23


def simulated(law: Law, quota: IntArray, rounds: int) -> tuple[float, float]:
    """Return mean length and worker time of rounds that end with the B-th result."""
    rng = np.random.default_rng(4)
    lengths, spent = np.empty(rounds), np.empty(rounds)
    for k in range(rounds):
        ends = np.cumsum([law.draw(rng) for _ in range(quota.max())], axis=0)
        ordered = np.arange(1, quota.max() + 1)[:, None] <= quota
        lengths[k] = np.sort(ends[ordered])[BUDGET - 1]
        last = ends[quota - 1, np.arange(law.n)][quota > 0]
        spent[k] = np.minimum(last, lengths[k]).sum()
    return float(lengths.mean()), float(spent.mean())


@pytest.mark.parametrize("law", [Sqrt(51), Linear(51)])
def test_a_round_with_spares_lasts_and_costs_on_average_what_was_predicted(law: Law) -> None:
    speeds = SpeedEstimates(law.means, law.means / 2.0, np.zeros(law.n))  # a deviation of half the mean
    whole, W0 = plan_exactly(speeds, BUDGET)
    plan = plan_with_spares(speeds, np.zeros(law.n), BUDGET, 1.0, whole, W0)
    assert plan.quota.sum() > BUDGET
    # 1,000 rounds show a mean to about 1 %; the rest is the error of the normal approximation.
    assert simulated(law, plan.quota, 1000) == pytest.approx((plan.length, plan.worker_time), rel=0.05)


def test_of_prices_that_give_the_same_quotas_the_lowest_is_kept() -> None:
    rng = np.random.default_rng(5284)
    n, budget = int(rng.integers(3, 40)), int(rng.integers(2, 40))
    mu = np.sort(np.exp(rng.normal(0.0, 0.7, n)))
    plan, _ = plan_exactly(SpeedEstimates(mu, mu * rng.uniform(0.3, 1.0, n), mu * 0.05), budget)
    # Those of 1/8, 1/4 and 1/2 over ten busy workers do; by a rounding error the second is best.
    assert plan.price == PRICES[0] / 10


def test_two_tasks_go_to_two_workers_where_that_makes_the_round_shorter() -> None:
    mu = np.sqrt(np.arange(1.0, 6.0))
    plan, _ = plan_exactly(SpeedEstimates(mu, mu / 10.0, np.zeros(5)), 2)
    assert plan.quota.tolist() == [1, 1, 0, 0, 0]
    # At a mean of 1.3 a third worker would take over the task of the second, whose mean is 1.41; at 1.5 not.
    assert plan.wants(np.array([1.3, 1.5]), np.array([0.1, 0.1])).tolist() == [True, False]


def stopped_at(limit: float, tasks: int) -> Array:
    """Return the estimates of mean and deviation from tasks 1/2 + Exp(1/2) that are stopped at a limit."""
    model, worker = TaskModel(1), np.array([0])
    for x in 0.5 + np.random.default_rng(5).exponential(0.5, tasks):
        if x <= limit:
            model.learn(worker, np.array([1]), np.array([x]))
        else:
            model.learn_stopped(worker, np.array([limit]))
    mu, sd, _ = model.speeds(worker)
    return np.array([mu[0], sd[0]])


@pytest.mark.parametrize("limit", [0.8, 1.0, 1.5])
def test_stopping_long_tasks_makes_a_worker_look_neither_faster_nor_steadier(limit: float) -> None:
    # 4,000 tasks, of which 45 to 86 % finish: chance alone moves the estimates by about 1 and 3 %.
    mean, deviation = stopped_at(limit, 4000)
    assert mean == pytest.approx(1.0, rel=0.05)
    assert deviation == pytest.approx(0.5, rel=0.12)
