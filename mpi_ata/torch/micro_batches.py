"""Micro-batches of a rank's own loader, or of one sequence that all ranks share."""

from collections.abc import Iterator
from typing import Any

from mpi_ata.errors import UsageError
from mpi_ata.torch.epochs import Epochs


class LoaderDraws:
    """Batches of a loader without end: when it is exhausted, the next epoch begins."""

    def __init__(self, loader: Any, epoch: int) -> None:
        self.loader, self._epoch = loader, epoch
        self._batches = self._restarted()

    def _restarted(self) -> Iterator[Any]:
        sampler: Any = getattr(self.loader, "sampler", None)
        if hasattr(sampler, "set_epoch"):  # of a DistributedSampler, which shuffles by it
            sampler.set_epoch(self._epoch)
        self._epoch += 1
        return iter(self.loader)

    def take(self, first: int, count: int) -> Iterator[Any]:
        """Yield the next `count` batches, whatever their place among those of all ranks."""
        for _ in range(count):
            yield self._next()

    def _next(self) -> Any:
        for _ in range(2):
            for batch in self._batches:
                return batch
            self._batches = self._restarted()
        raise UsageError(
            "the loader has no batches; give it more samples, a smaller batch_size or drop_last=False, and "
            "let it be one that can be iterated over more than once"
        )


class SharedDraws:
    """Batches of a loader's dataset in one sequence for all ranks, each sample once per epoch."""

    def __init__(self, loader: Any, seed: int) -> None:
        parts: list[Any] = [getattr(loader, name, None) for name in ("dataset", "batch_size", "collate_fn")]
        if None in parts or not hasattr(parts[0], "__getitem__"):
            raise UsageError(
                "shuffle='epoch' needs a DataLoader with a dataset that has samples by number, and with a "
                "batch_size; use these, or leave shuffle out"
            )
        self.loader = loader
        self._dataset, batch_size, self._collate = parts
        if not len(self._dataset):
            raise UsageError("the dataset of the loader has no samples; give it at least one")
        self._epochs = Epochs(len(self._dataset), batch_size, seed)

    def take(self, first: int, count: int) -> Iterator[Any]:
        """Yield `count` batches, from this place of the sequence on."""
        for index in range(first, first + count):
            numbers = self._epochs.batch(index).tolist()
            yield self._collate([self._dataset[number] for number in numbers])
