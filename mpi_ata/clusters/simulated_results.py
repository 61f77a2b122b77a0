"""The results of simulated workers, computed in this process when they are due."""

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.clusters.draws import Draws
from mpi_ata.clusters.faults import FaultScript
from mpi_ata.clusters.interface import DRAWS_GLOBALLY, compute, received, surely_finite
from mpi_ata.clusters.simulated import Order
from mpi_ata.clusters.values import template_of
from mpi_ata.clusters.wire import results_wire
from mpi_ata.problems import AnyProblem, Task, returns_values, task_streams
from mpi_ata.randomness import global_states

log = logging.getLogger("mpi_ata")


class SimulatedResults:
    """Computes the results of tasks, rounded as they travel, and garbled where a script of faults says so."""

    def __init__(
        self,
        problem: AnyProblem,
        seed: int,
        draws: Draws | None,
        script: FaultScript,
        name: Callable[[int], str],
    ) -> None:
        self._problem, self._streams, self._draws = problem, task_streams(seed), draws
        self._wire = results_wire(problem, template_of(problem))
        self._script, self._name = script, name
        # Plain bools are faster.
        self._rounds, self._scripted = bool(self._wire), bool(script)
        self._checks = self._scripted or returns_values(problem)
        self._compute: Callable[[Array, Sequence[Task]], Any] = self._compute_first

    def of(self, worker: int, order: Order, numbers: range, seconds: list[float]) -> tuple[Any, list[float]]:
        """Return the result of the tasks with these numbers, and the seconds that are reported for them."""
        tasks = [Task(self._streams, order.round, worker, number) for number in numbers]
        if self._draws is not None:
            for task, index in zip(tasks, self._draws.of(worker), strict=False):
                task.index = index
        result: Any = np.array(self._compute(order.x, tasks))
        if self._rounds:
            self._wire.round(result)
        if self._scripted:
            self._script.check_task(worker, order.round)
            result, seconds = self._script.garbled(worker, result, seconds)
        if self._checks or not surely_finite(result):
            where = f"{self._name(worker)} in round {order.round}"
            result = received(worker, result, seconds, order.x, where, math.inf)
        return result, seconds

    def _compute_first(self, x: Array, tasks: Sequence[Task]) -> Any:
        """Compute the first tasks, and warn if they draw random numbers that will not repeat."""
        self._compute = partial(compute, self._problem, at_once=True)
        before = global_states()
        result = self._compute(x, tasks)
        if global_states() != before:
            log.warning(DRAWS_GLOBALLY)
        return result
