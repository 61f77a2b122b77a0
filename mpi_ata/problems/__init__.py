"""What a task computes: one problem, one file."""

from mpi_ata.problems.cifar import Cifar100
from mpi_ata.problems.interface import Problem, ProblemClass, Task, task_streams
from mpi_ata.problems.logistic import Logistic
from mpi_ata.problems.quadratic import Quadratic
from mpi_ata.problems.torch_problem import TorchProblem

__all__ = [
    "PROBLEMS",
    "Cifar100",
    "Logistic",
    "Problem",
    "Quadratic",
    "Task",
    "TorchProblem",
    "task_streams",
]

PROBLEMS: dict[str, ProblemClass] = {"quadratic": Quadratic, "logistic": Logistic, "cifar100": Cifar100}
