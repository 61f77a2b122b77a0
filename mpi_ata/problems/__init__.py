"""What a task computes: one problem, one file."""

from mpi_ata.problems.interface import Problem, Task, task_streams
from mpi_ata.problems.logistic import Logistic
from mpi_ata.problems.quadratic import Quadratic

__all__ = ["Logistic", "Problem", "Quadratic", "Task", "task_streams"]
