"""A PyTorch script as a problem: model, loss and data as they were, without the training loop.

DataLoader, zero_grad, backward and step are gone: tasks draw batches and return gradients, and
jobs/pytorch_script.toml chooses the method that updates the weights.
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from mpi_ata import TorchProblem


def spirals(points: int, seed: int) -> TensorDataset:
    """Points on three interleaved spirals, labelled by spiral."""
    noise = torch.Generator().manual_seed(seed)
    label, t = torch.arange(points) % 3, torch.rand(points, generator=noise)
    angle = 5 * t + 2.1 * label + 0.15 * torch.randn(points, generator=noise)
    return TensorDataset(torch.stack([t * angle.cos(), t * angle.sin()], dim=1), label)


class Spirals(TorchProblem):
    """Classify points by spiral."""

    def __init__(self, batch_size: int = 16, hidden: int = 64, seed: int = 0) -> None:
        def model() -> nn.Module:
            return nn.Sequential(
                nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 3)
            )

        super().__init__(
            model,
            nn.CrossEntropyLoss(),
            spirals(3000, seed=1),
            batch_size,
            test=spirals(600, seed=2),
            metrics={"accuracy": TorchProblem.accuracy},
            seed=seed,
        )
