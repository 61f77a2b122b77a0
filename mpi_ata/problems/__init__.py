"""What a task computes: one problem, one file."""

from mpi_ata.problems.interface import (
    AnyProblem,
    Computation,
    Problem,
    Task,
    returns_values,
    task_streams,
)
from mpi_ata.problems.logistic import Logistic
from mpi_ata.problems.quadratic import Quadratic

__all__ = [
    "AnyProblem",
    "Computation",
    "Logistic",
    "Problem",
    "Quadratic",
    "Task",
    "returns_values",
    "task_streams",
]
