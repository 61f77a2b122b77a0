"""Datasets that loader processes can import."""

import os
import time
from typing import Any

import numpy as np
import torch

SIZE = 24


class Noisy:
    """Samples with noise from PyTorch's generator, as random transforms add it; `seconds` to read one."""

    def __init__(self, size: int = SIZE, seconds: float = 0.0) -> None:
        self.size, self.seconds = size, seconds

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        time.sleep(self.seconds)
        return number + torch.rand(3), torch.tensor(number % 2)


class Broken(Noisy):
    """Fails, or ends its process, for some samples; a process of another number reads them."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.rank = how, os.getpid()

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        if os.getpid() != self.rank:
            if self.how == "raises":
                raise ValueError(f"sample {number} is damaged")
            if self.how == "returns a lambda":
                return torch.zeros(1), lambda: number
            os._exit(7)
        return super().__getitem__(number)


class Globally(Noisy):
    """Samples with noise from numpy's global generator."""

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        return torch.from_numpy(np.random.rand(3)).float(), torch.tensor(number % 2)  # noqa: NPY002


def collate(samples: list[Any]) -> tuple[Any, Any]:
    """Return a batch with one more feature: how many samples it has."""
    inputs, targets = torch.utils.data.default_collate(samples)
    return torch.cat([inputs, torch.full((len(samples), 1), float(len(samples)))], dim=1), targets


def unchanged(samples: list[Any]) -> list[Any]:
    """Return the samples as they are."""
    return samples
