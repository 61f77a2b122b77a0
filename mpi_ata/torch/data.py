"""Which samples a minibatch consists of: drawn with replacement, in epochs, or as a sampler says."""

import copy
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from hashlib import sha256
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from mpi_ata.arrays import IntArray
from mpi_ata.errors import RunError, UsageError
from mpi_ata.problems.interface import Task, shard
from mpi_ata.randomness import Purpose, Streams
from mpi_ata.torch.devices import import_torch
from mpi_ata.torch.loaders import TRAINING, Loaders, Reader, ReadRequest, seed_globally


class Epochs:
    """Minibatches in a sequence that all workers share, one pass over the data after the other.

    A minibatch may end one pass and begin the next.  `drawn(epoch)` returns the samples of a pass, in their
    order.  What a minibatch consists of, and the seeds of all that is drawn for it, depend on its index and
    on `seed` alone: all ranks find the same.
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        seed: int,
        drawn: Callable[[int], list[Any]] | None = None,
    ) -> None:
        self._size, self._batch_size, self._streams = size, batch_size, Streams(seed, Purpose.EPOCHS)
        self.drawn = lru_cache(maxsize=2)(drawn or self._permutation)

    def _permutation(self, epoch: int) -> list[int]:
        found: list[int] = self._streams.at(epoch).permutation(self._size).tolist()
        return found

    def minibatch(self, index: int) -> IntArray:
        """Return the samples of one minibatch."""
        places = range(index * self._batch_size, (index + 1) * self._batch_size)
        return np.array([self.drawn(place // self._size)[place % self._size] for place in places])

    def request(self, index: int) -> tuple[ReadRequest, int]:
        """Return how one minibatch is read, and a seed for its model."""
        seed, model_seed = self._streams.at(index, number=1).integers(2**63, size=2).tolist()
        return ReadRequest(TRAINING, seed, self.minibatch(index)), model_seed


class BatchSamplerEpochs(Epochs):
    """Minibatches as a batch sampler returns them, one pass after the other."""

    def minibatch(self, index: int) -> IntArray:
        """Return the samples of one minibatch."""
        return np.array(self.drawn(index // self._size)[index % self._size])


def sequence(
    size: int, batch_size: int, seed: int, shuffle: str, sampler: Any = None, batch_sampler: Any = None
) -> Epochs | None:
    """Return the sequence of minibatches that workers share; None where each task draws for itself."""
    if shuffle not in ("replacement", "epoch"):
        raise UsageError(
            f"{shuffle=} must be 'replacement' or 'epoch', which is what shuffle=True of a DataLoader does"
        )
    given = [each for each in (sampler, batch_sampler) if each is not None]
    if len(given) + (shuffle == "epoch") > 1:
        raise UsageError("shuffle='epoch', sampler and batch_sampler exclude each other; keep one of them")
    if not given:
        return Epochs(size, batch_size, seed) if shuffle == "epoch" else None
    _check_sampler(given[0])
    cls = Epochs if batch_sampler is None else BatchSamplerEpochs
    drawn = partial(_sampler_pass, given[0], seed)
    found = cls(len(given[0]), batch_size, seed, drawn)
    if found.drawn(0) != drawn(0):  # ranks draw passes when they need them, and not all of them
        raise UsageError(
            f"{type(given[0]).__name__} yields other samples when it is asked again for the same pass; let "
            "it draw from the global generator of PyTorch, numpy or Python, from a torch.Generator that is "
            "its attribute `generator`, or by the number that set_epoch(number) gives it"
        )
    return found


def _check_sampler(sampler: Any) -> None:
    if not (hasattr(sampler, "__len__") and len(sampler)):
        raise UsageError(f"{type(sampler).__name__} has no length, or the length 0; a sampler needs one")
    if any(getattr(part, "num_replicas", 1) > 1 for part in _parts(sampler)):
        raise UsageError(
            "a DistributedSampler divides samples among ranks, but tasks are divided by speed here; use "
            "shuffle='epoch', which gives each sample to one task per epoch"
        )


def _sampler_pass(sampler: Any, seed: int, number: int) -> list[Any]:
    """Return all that a sampler yields in a pass; it depends on seed and number of the pass alone."""
    drawn = int(Streams(seed, Purpose.EPOCHS).at(number, number=2).integers(2**63))
    with _seeded(drawn, sampler):
        set_epoch(sampler, number)
        found = [each if isinstance(each, int) else np.asarray(each).tolist() for each in sampler]
    if len(found) != len(sampler):
        raise RunError(
            f"{type(sampler).__name__} has yielded {len(found)} entries, but its length is {len(sampler)}; "
            "all passes must have this length"
        )
    return found


def _parts(sampler: Any) -> Iterator[Any]:
    """Yield a sampler, and the samplers inside it."""
    while sampler is not None:
        yield sampler
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)


def set_epoch(sampler: Any, number: int) -> None:
    """Set the epoch of a sampler that shuffles by its number, as a DistributedSampler does."""
    for part in _parts(sampler):
        if hasattr(part, "set_epoch"):
            part.set_epoch(number)


@contextmanager
def _seeded(seed: int, sampler: Any) -> Iterator[None]:
    """Seed all generators from which a sampler may draw; those that others use stay as they are."""
    torch = import_torch()
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    parts = (getattr(part, "generator", None) for part in _parts(sampler))
    own = [found for found in parts if isinstance(found, torch.Generator)]
    try:
        with torch.random.fork_rng(devices=()):
            for generator in (torch.default_generator, *own):
                generator.manual_seed(seed)
            seed_globally(seed)
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002


class RankBatches:
    """The batches that n ranks would draw under plain DDP, as one sequence: one of each rank in turn.

    `sampler` is the batch sampler of one of these ranks, as Lightning or Accelerate has prepared it.
    """

    def __init__(self, sampler: Any, n: int) -> None:
        self._samplers, self._epoch = [_of_rank(sampler, rank, n) for rank in range(n)], 0

    def __len__(self) -> int:
        return sum(map(len, self._samplers))

    def set_epoch(self, number: int) -> None:
        """Choose the pass that comes next."""
        self._epoch = number

    def __iter__(self) -> Iterator[Any]:
        seed = int(import_torch().randint(2**62, ()))
        passes = []
        for sampler in self._samplers:
            with _seeded(seed, sampler):
                set_epoch(sampler, self._epoch)
                passes.append(list(sampler))
        yield from (batch for batches in zip_longest(*passes) for batch in batches if batch is not None)


def _of_rank(sampler: Any, rank: int, n: int) -> Any:
    """Return a copy of a batch sampler that draws the part of another rank."""
    found = copy.copy(sampler)
    if n == 1:
        return found
    if hasattr(sampler, "process_index"):  # of Accelerate
        found.process_index = rank
        return found
    if getattr(getattr(sampler, "sampler", None), "num_replicas", 1) == 1:
        raise UsageError(
            "the training data are not divided among ranks by a DistributedSampler, so there is no sequence "
            "of batches to balance; use a dataset with a length, and leave samplers to the trainer"
        )
    found.sampler = copy.copy(sampler.sampler)
    found.sampler.rank = rank
    return found


class Minibatches:
    """Minibatches of a reader's first dataset for tasks, and of the others for evaluations.

    Tasks take theirs from a `sequence` that all workers share, or draw samples for themselves, with
    replacement: all, or, if they are `sharded`, those of their worker.
    """

    def __init__(
        self, reader: Reader, batch_size: int, sequence: Epochs | None, sharded: bool, num_workers: int
    ) -> None:
        if num_workers < 0:
            raise UsageError(f"{num_workers=} must be at least 0: loader processes per worker")
        if sequence is not None and sharded:
            raise UsageError(
                "sharded datasets are drawn from with replacement; remove shuffle='epoch', or the sampler"
            )
        self._reader, self._batch_size, self._sequence = reader, batch_size, sequence
        self._sharded, self._num_workers, self._n = sharded, num_workers, 0
        self.loaders = Loaders(reader, 0)

    def open(self, worker: int | None, n: int) -> None:
        """Start loader processes, on a worker, and set the number of workers that share the data."""
        self._n = n
        self._draws_from(worker or 0)
        if worker is not None and self._num_workers and not self.loaders.processes:
            self.loaders = Loaders(self._reader, self._num_workers)

    def shared_arrays(self) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield a hash of the first pass of a shared sequence; UsageError if it is overwritten by another."""
        first = None if self._sequence is None else self._sequence.drawn(0)
        own = sha256(repr(first).encode()).digest()
        yield (found := np.frombuffer(bytearray(own), np.uint8))
        if found.tobytes() != own:
            raise UsageError(
                "the samples of the first epoch are not those of rank 0; build dataset and sampler from the "
                "same seed on all ranks, as after torch.manual_seed(0)"
            )

    def _draws_from(self, worker: int) -> tuple[int, int]:
        """Return the first sample a worker may draw, and the one after the last."""
        size = len(self._reader.datasets[TRAINING])
        return shard(size, worker, self._n) if self._sharded else (0, size)

    def of_task(self, task: Task) -> tuple[Any, int]:
        """Return the minibatch of a task, and a seed for its model.

        Both depend on its place in the sequence alone, whoever does it, or else on the task alone.
        """
        request, model_seed = self._drawn(task)
        return self.loaders.get(request), model_seed

    def _drawn(self, task: Task) -> tuple[ReadRequest, int]:
        if self._sequence is not None and task.index is not None:
            return self._sequence.request(task.index)
        samples = task.rng.integers(*self._draws_from(task.worker), self._batch_size)
        seed, model_seed = task.rng.integers(2**63, size=2).tolist()
        return ReadRequest(TRAINING, seed, samples), model_seed

    def expect(self, tasks: Iterable[Task]) -> None:
        """Read the minibatches of these tasks ahead, if there are loader processes."""
        self.loaders.expect(self._drawn(task)[0] for task in tasks)

    def of_part(self, dataset: int, part: int, size: int) -> tuple[Any, int]:
        """Return a part of a dataset, of up to `size` samples, and its size; the next are read ahead."""
        request = self._reader.part(dataset, part, size)
        if not self.loaders.expects(request):
            parts = range(part, -(-len(self._reader.datasets[dataset]) // size))
            self.loaders.expect(self._reader.part(dataset, each, size) for each in parts)
        return self.loaders.get(request), len(request.samples)
