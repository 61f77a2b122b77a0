"""A problem whose tasks compute gradients at two points, with the same sample."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.problems.interface import Problem, ProblemAbilities, Task


class TwoPoints:
    """Another problem whose tasks are given two points and return two gradients, for `RennalaMVR`.

    Both are computed with the same `task.rng` from its beginning and the same `task.index`, so a problem must
    draw its samples from these.  All else, `loss` and `evaluate` included, is that of the other problem.
    """

    evaluation_parts = halved_x = halved_results = 0  # evaluated on the manager, at one point

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.x0: Array = np.stack([problem.x0, problem.x0])
        if (gradients := ProblemAbilities.of(problem).gradients) is not None:
            self.gradients = lambda x, tasks: _both(gradients, x, tasks, [task.again() for task in tasks])

    def __getattr__(self, name: str) -> Any:
        if name == "problem":  # of a copy that is not complete
            raise AttributeError(name)
        return getattr(self.problem, name)

    def gradient(self, x: Array, task: Task) -> Array:
        """Return the gradients at both points."""
        return _both(self.problem.gradient, x, task, task.again())


def _both(gradient: Any, x: Array, tasks: Task | Sequence[Task], again: Task | Sequence[Task]) -> Array:
    first = np.array(gradient(x[0], tasks))  # a copy, since a problem may reuse its array
    return np.stack([first, gradient(x[1], again)])
