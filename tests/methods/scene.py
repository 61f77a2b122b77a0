"""Small problems, allocators and clusters for the tests of all methods."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mpi_ata.allocators.interface import NonAdaptive
from mpi_ata.arrays import Array, BoolArray
from mpi_ata.clusters import FaultPolicy, Task, VirtualCluster
from mpi_ata.job.component import LAWS
from mpi_ata.methods import Method, Round
from mpi_ata.methods.interface import MethodAbilities
from mpi_ata.problems import Problem, TwoPoints
from mpi_ata.times import DrawnTimes


class Ramp:
    """A gradient that needs no random numbers: (x_1, 1 + worker)."""

    def __init__(self, dtype: Any = np.float64) -> None:
        self.x0: Array = np.array([8.0, 0.0], dtype)

    def gradient(self, x: Array, task: Task) -> Array:
        return np.array([x[0], 1.0 + task.worker])


class Fixed(NonAdaptive):
    """The same quota in every round, and a diary of what was observed."""

    def __init__(self, quota: Sequence[int], budget: int | None = None) -> None:
        self.quota = np.array(quota)
        self.n, self.budget = len(quota), budget or sum(quota)
        self.diary: list[tuple[int, list[float], list[float]]] = []

    def allocate(self, available: BoolArray) -> Any:
        return self.quota

    def observe(
        self, worker: int, seconds: Sequence[float], stopped: Sequence[float] = (), overhead: float = 0.0
    ) -> None:
        self.diary.append((worker, list(seconds), list(stopped)))


def cluster_of(
    problem: Problem,
    seconds: Sequence[float],
    seed: int = 0,
    deaths: Mapping[int, float] | None = None,
    policy: FaultPolicy | None = None,
) -> VirtualCluster:
    times = DrawnTimes(LAWS["constant"](len(seconds), seconds))
    return VirtualCluster(problem, times, seed, deaths, policy=policy)


def counts(round: Round) -> tuple[list[int], list[int], list[int], list[int]]:
    return round.started.tolist(), round.used.tolist(), round.wasted.tolist(), round.lost.tolist()


def tasks_of(method: Method, problem: Problem) -> Problem:
    """Return the problem as the method's cluster needs it."""
    return TwoPoints(problem) if MethodAbilities.of(method).points_per_task == 2 else problem


class Recording:
    """A gradient that is pure noise, and a list of the tasks that were done: round, worker, number."""

    def __init__(self) -> None:
        self.x0: Array = np.zeros(2)
        self.tasks: list[tuple[int, int, int]] = []

    def gradient(self, x: Array, task: Task) -> Array:
        self.tasks.append((task.round, task.worker, task.number))
        return task.rng.standard_normal(2)
