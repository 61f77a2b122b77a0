"""What tests of PyTorch share; without PyTorch they are skipped."""

from typing import Any

import pytest

from mpi_ata import Task
from mpi_ata.problems import task_streams

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: `make torch`")
nn: Any = torch.nn


def task(number: int = 0, round: int = 1, worker: int = 0, seed: int = 0) -> Task:
    return Task(task_streams(seed), round, worker, number)


def samples(size: int = 40, seed: int = 1, features: int = 3) -> Any:
    """Return points of two classes that a line divides."""
    inputs = torch.randn(size, features, generator=torch.Generator().manual_seed(seed)) * 2 + 1
    return torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > features).long())


def drained(trainer: Any) -> Any:
    """Return a trainer after all its rounds."""
    for _ in trainer:
        pass
    return trainer
