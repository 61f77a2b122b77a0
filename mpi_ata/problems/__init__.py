"""What a task computes: one problem, one file."""

from mpi_ata.problems.interface import Problem, ProblemClass, Task, task_streams
from mpi_ata.problems.quadratic import Quadratic

__all__ = ["PROBLEMS", "Problem", "Quadratic", "Task", "task_streams"]

PROBLEMS: dict[str, ProblemClass] = {"quadratic": Quadratic}
