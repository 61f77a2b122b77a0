"""The batches of tasks and evaluations: which samples they have, and who reads them."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from mpi_ata.problems.interface import Task
from mpi_ata.problems.shards import shard
from mpi_ata.torch.epochs import Epochs
from mpi_ata.torch.loaders import Loaders
from mpi_ata.torch.reading import TRAINING, Reader, Request


class Batches:
    """Batches of a reader's first dataset for tasks, and of the others for evaluations.

    Tasks take theirs from a `sequence` that all workers share, or draw samples for themselves, with
    replacement: all, or, if they are `sharded`, those of their worker.
    """

    def __init__(
        self, reader: Reader, batch_size: int, sequence: Epochs | None, sharded: bool, num_workers: int
    ) -> None:
        if num_workers < 0:
            raise ValueError(f"{num_workers=} must be at least 0: loader processes per worker")
        if sequence is not None and sharded:
            raise ValueError(
                "sharded datasets are drawn from with replacement; remove shuffle='epoch', or the sampler"
            )
        self._reader, self._batch_size, self._sequence = reader, batch_size, sequence
        self._sharded, self._count, self._n = sharded, num_workers, 0
        self._loaders: Loaders | None = None

    def open(self, worker: int | None, n: int) -> None:
        """Start loader processes, on a worker, and set the number of workers that share the data."""
        self._n = n
        self._draws_from(worker or 0)
        if worker is not None and self._count and self._loaders is None:
            self._loaders = Loaders(self._reader, self._count)

    def close(self) -> None:
        """End the loader processes, if there are any."""
        if self._loaders is not None:
            self._loaders.close()
            self._loaders = None

    def _draws_from(self, worker: int) -> tuple[int, int]:
        """Return the first sample a worker may draw, and the one after the last."""
        size = len(self._reader.datasets[TRAINING])
        return shard(size, worker, self._n) if self._sharded else (0, size)

    def of_task(self, task: Task) -> tuple[Any, int]:
        """Return the batch of a task, and a seed for its model; both depend on the task alone."""
        drawn = self._drawn(task)
        return self._read(drawn.request), drawn.model_seed

    def _drawn(self, task: Task) -> "_Drawn":
        if self._sequence is not None and task.index is not None:
            numbers, seed = self._sequence.batch(task.index), self._sequence.reading_seed(task.index)
            return _Drawn(Request(TRAINING, seed, numbers), int(task.rng.integers(2**63)))
        numbers = task.rng.integers(*self._draws_from(task.worker), self._batch_size)
        seed, model_seed = task.rng.integers(2**63, size=2).tolist()
        return _Drawn(Request(TRAINING, seed, numbers), model_seed)

    def expect(self, tasks: Iterable[Task]) -> None:
        """Read the batches of these tasks ahead, if there are loader processes."""
        if self._loaders is not None:
            self._loaders.expect(self._drawn(task).request for task in tasks)

    def of_part(self, dataset: int, part: int, size: int) -> tuple[Any, int]:
        """Return the part-th `size` samples of a dataset, and how many they are; the next are read ahead."""
        reader, loaders = self._reader, self._loaders
        request = reader.part(dataset, part, size)
        if loaders is not None and not loaders.expects(request):
            parts = range(part, -(-len(reader.datasets[dataset]) // size))
            loaders.expect(reader.part(dataset, each, size) for each in parts)
        return self._read(request), len(request.numbers)

    def _read(self, request: Request) -> Any:
        return self._reader.read(request) if self._loaders is None else self._loaders.get(request)


class _Drawn(NamedTuple):
    """What a task has drawn."""

    request: Request
    model_seed: int
