"""What a task computes: one problem, one file."""

from mpi_ata.problems.interface import AnyProblem as AnyProblem
from mpi_ata.problems.interface import Computation as Computation
from mpi_ata.problems.interface import EvaluationAbilities as EvaluationAbilities
from mpi_ata.problems.interface import Problem as Problem
from mpi_ata.problems.interface import ProblemAbilities as ProblemAbilities
from mpi_ata.problems.interface import Task as Task
from mpi_ata.problems.interface import returns_values as returns_values
from mpi_ata.problems.interface import task_streams as task_streams
from mpi_ata.problems.logistic import Logistic as Logistic
from mpi_ata.problems.quadratic import Quadratic as Quadratic
from mpi_ata.problems.two_points import TwoPoints as TwoPoints
