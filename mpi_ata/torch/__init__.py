"""PyTorch models as problems, and its optimizers as updates; PyTorch itself is imported where it is used."""

from mpi_ata.torch.cifar import Cifar100
from mpi_ata.torch.named_update import NamedTorchUpdate
from mpi_ata.torch.problem import TorchProblem
from mpi_ata.torch.updates import TorchUpdate

__all__ = ["Cifar100", "NamedTorchUpdate", "TorchProblem", "TorchUpdate"]
