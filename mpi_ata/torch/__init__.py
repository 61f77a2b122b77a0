"""PyTorch models as problems, and its optimizers as updates; PyTorch itself is imported where it is used."""

from mpi_ata.torch.cifar100 import Cifar100
from mpi_ata.torch.optimizers import NamedTorchUpdate, TorchUpdate
from mpi_ata.torch.problem import TorchProblem

__all__ = ["Cifar100", "NamedTorchUpdate", "TorchProblem", "TorchUpdate"]
