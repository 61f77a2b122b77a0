"""Reading batches of a dataset: in this process, or in loader processes."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpi_ata.arrays import IntArray
from mpi_ata.torch.devices import import_torch

TRAINING = 0  # the first dataset of a reader; those for evaluations follow


class Request(NamedTuple):
    """Which samples of which dataset make a batch, and the seed of what is drawn while they are read."""

    dataset: int
    seed: int
    numbers: IntArray

    @property
    def key(self) -> tuple[int, int]:
        """Return what tells batches apart: seeds are those of tasks, or parts of an evaluation."""
        return self.dataset, self.seed


class Reader:
    """Reads batches of several datasets; `collate_fn` makes a batch of samples."""

    def __init__(self, datasets: Sequence[Any], collate_fn: Callable[[list[Any]], Any] | None) -> None:
        for dataset in datasets:
            if not hasattr(dataset, "__len__"):
                rule = "it needs a length and samples by number"
                raise ValueError(f"the dataset {type(dataset).__name__} has no length; {rule}")
            if not len(dataset):
                raise ValueError("a dataset for training or testing must have at least one sample")
        self.datasets, self._collate = tuple(datasets), collate_fn

    def read(self, request: Request) -> Any:
        """Return a batch, which depends on the request alone if transforms draw from PyTorch."""
        torch = import_torch()
        torch.default_generator.manual_seed(request.seed)  # torch.manual_seed costs as much as a small task
        dataset, numbers = self.datasets[request.dataset], request.numbers
        if hasattr(dataset, "batch"):
            return dataset.batch(numbers)
        if isinstance(dataset, torch.utils.data.TensorDataset) and self._collate is None:
            return dataset[torch.from_numpy(numbers)]
        samples = self._samples(dataset, numbers)
        return (self._collate or torch.utils.data.default_collate)(samples)

    def _samples(self, dataset: Any, numbers: IntArray) -> list[Any]:
        if hasattr(dataset, "__getitems__"):  # PyTorch's own way to fetch many at once
            found: list[Any] = dataset.__getitems__(numbers.tolist())
            return found
        return [dataset[number] for number in numbers.tolist()]

    def part(self, dataset: int, part: int, size: int) -> Request:
        """Return the request for the part-th `size` samples of a dataset, in its order."""
        end = min((part + 1) * size, len(self.datasets[dataset]))
        return Request(dataset, part, np.arange(part * size, end))
