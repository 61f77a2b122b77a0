"""Micro-batches of a rank's own loader, or of one sequence that all ranks share."""

from collections.abc import Iterator
from typing import Any

from mpi_ata.errors import UsageError
from mpi_ata.torch.devices import import_torch
from mpi_ata.torch.epochs import Epochs
from mpi_ata.torch.loaders import Loaders
from mpi_ata.torch.reading import TRAINING, Reader, Request


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

    def close(self) -> None:
        """Let go of the loader's processes, if it has any."""
        self._batches = iter(())

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
    """Batches of a loader's dataset in one sequence for all ranks, each sample once per epoch.

    A batch depends on its place in the sequence alone, with what is drawn while it is read, and after that.
    """

    def __init__(self, loader: Any, seed: int) -> None:
        parts: list[Any] = [getattr(loader, name, None) for name in ("dataset", "batch_size", "collate_fn")]
        if None in parts:
            raise UsageError(
                "shuffle='epoch' needs a DataLoader with a dataset and a batch_size; use these, or leave "
                "shuffle out"
            )
        dataset, batch_size, collate = parts
        usual = collate is import_torch().utils.data.default_collate
        try:
            self._reader = Reader([dataset], None if usual else collate)
        except ValueError as error:
            raise UsageError(f"{error}; shuffle='epoch' draws samples of it, so give it some") from None
        self.loader, self._epochs = loader, Epochs(len(dataset), batch_size, seed)
        self._processes = Loaders(self._reader, loader.num_workers) if loader.num_workers else None

    def take(self, first: int, count: int) -> Iterator[Any]:
        """Yield `count` batches, from this place of the sequence on."""
        requests = [self._request(index) for index in range(first, first + count)]
        if self._processes is not None:
            self._processes.expect(requests)
        for request in requests:
            yield self._reader.read(request) if self._processes is None else self._processes.get(request)

    def close(self) -> None:
        """End the loader processes, if there are any."""
        if self._processes is not None:
            self._processes.close()

    def _request(self, index: int) -> Request:
        return Request(TRAINING, self._epochs.reading_seed(index), self._epochs.batch(index))
