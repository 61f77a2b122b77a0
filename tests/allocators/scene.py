"""What the tests of all allocators need."""

from typing import NamedTuple

import numpy as np

from mpi_ata.allocators import Allocator
from mpi_ata.arrays import Array, BoolArray, IntArray, State
from mpi_ata.clusters import VirtualCluster
from mpi_ata.methods import SGD
from mpi_ata.problems.no_work import NoWork
from mpi_ata.times import DrawnTimes, Law
from mpi_ata.updates import Plain


def everyone(allocator: Allocator) -> BoolArray:
    return np.ones(allocator.n, np.bool_)


class Played(NamedTuple):
    """What some rounds were: clock and worker time after each, and their quotas."""

    clock: Array
    worker_time: Array
    quotas: list[IntArray]


def play_rounds(
    allocator: Allocator, law: Law, rounds: int, seed: int = 0, first: int = 0, stoppable: bool = True
) -> Played:
    """Play rounds on the virtual clock, without gradients; `first` rounds were played before."""
    problem = NoWork()
    cluster = VirtualCluster(problem, DrawnTimes(law, seed, stoppable=stoppable), seed)
    method = SGD(problem.x0, allocator, Plain(1.0))
    method.k = first
    clock, worker_time, quotas = [], [], []
    for _ in range(rounds):
        quotas.append(method.step(cluster).quota)
        clock.append(cluster.now())
        worker_time.append(float(cluster.ledger.worker_time.sum()))
    return Played(np.array(clock), np.array(worker_time), quotas)


def play_tasks(allocator: Allocator, times: DrawnTimes, rounds: range) -> list[list[int]]:
    """Return the quotas of some rounds, in which all tasks finish."""
    quotas = []
    for k in rounds:
        quota = allocator.allocate(everyone(allocator)).tolist()
        for worker, count in enumerate(quota):
            if count:
                allocator.observe(worker, times.of(worker, k, 0, count))
        quotas.append(quota)
    return quotas


def known_from(law: Law, tasks: int) -> State:
    """Return what earlier runs know of the workers."""
    times = np.array([law.draw(np.random.default_rng(u)) for u in range(tasks)])
    sums = {"seconds": times.sum(0), "squares": (times**2).sum(0), "least": times.min(0)}
    zeros = {name: np.zeros(law.n) for name in ("unfinished", "overhead")}
    return sums | zeros | {"tasks": np.full(law.n, tasks)}
