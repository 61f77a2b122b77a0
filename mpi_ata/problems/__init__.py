"""What a task computes: one problem, one file."""

from mpi_ata.problems.interface import (
    AnyProblem,
    Computation,
    EvaluationAbilities,
    Problem,
    ProblemAbilities,
    Task,
    returns_values,
    task_streams,
)
from mpi_ata.problems.logistic import Logistic
from mpi_ata.problems.quadratic import Quadratic

__all__ = [
    "AnyProblem",
    "Computation",
    "EvaluationAbilities",
    "Logistic",
    "Problem",
    "ProblemAbilities",
    "Quadratic",
    "Task",
    "returns_values",
    "task_streams",
]
