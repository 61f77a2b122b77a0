"""One sequence of batches that all workers share: epochs without replacement, or the passes of a sampler."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np

from mpi_ata.arrays import IntArray
from mpi_ata.errors import RunError
from mpi_ata.randomness import Purpose, Streams
from mpi_ata.torch.devices import import_torch


class Epochs:
    """Batches of samples, one pass over the data after the other; a batch may end one and begin the next.

    `drawn(epoch)` returns the samples of a pass, in their order.  What a batch consists of, and the seed with
    which it is read, depend on its index and on `seed` alone: all ranks find the same.
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        seed: int,
        drawn: Callable[[int], Sequence[Any] | IntArray] | None = None,
    ) -> None:
        self._size, self._batch_size, self._streams = size, batch_size, Streams(seed, Purpose.EPOCHS)
        self._drawn = lru_cache(maxsize=2)(drawn or self._permutation)

    def _permutation(self, epoch: int) -> IntArray:
        return self._streams.at(epoch).permutation(self._size)

    def batch(self, index: int) -> IntArray:
        """Return the samples of one batch."""
        places = range(index * self._batch_size, (index + 1) * self._batch_size)
        return np.array([self._drawn(place // self._size)[place % self._size] for place in places])

    def reading_seed(self, index: int) -> int:
        """Return the seed of what is drawn while a batch is read."""
        return int(self._streams.at(index, number=1).integers(2**63))


class BatchPasses(Epochs):
    """Batches as a batch sampler returns them, one pass after the other."""

    def batch(self, index: int) -> IntArray:
        """Return the samples of one batch."""
        return np.array(self._drawn(index // self._size)[index % self._size])


class Passes:
    """What a sampler yields in a pass, which depends on the seed and the number of the pass alone."""

    def __init__(self, sampler: Any, seed: int) -> None:
        self._sampler, self._streams = sampler, Streams(seed, Purpose.EPOCHS)

    def __call__(self, number: int) -> list[Any]:
        """Return all that the sampler yields in this pass."""
        sampler, expected = self._sampler, len(self._sampler)
        with _seeded(int(self._streams.at(number, number=2).integers(2**63)), sampler):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(number)
            found = list(sampler)
        if len(found) != expected:
            raise RunError(
                f"{type(sampler).__name__} has yielded {len(found)} entries, but its length is {expected}; "
                "all passes must have this length"
            )
        return found


@contextmanager
def _seeded(seed: int, sampler: Any) -> Iterator[None]:
    """Seed all generators from which a sampler may draw; those that others use stay as they are."""
    torch = import_torch()
    before = torch.default_generator.get_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    for part in (sampler, getattr(sampler, "sampler", None)):
        own: Any = getattr(part, "generator", None)
        if isinstance(own, torch.Generator):
            own.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])  # noqa: NPY002


def sequence(
    size: int, batch_size: int, seed: int, shuffle: str, sampler: Any = None, batch_sampler: Any = None
) -> Epochs | None:
    """Return the sequence of batches that workers share; None where each task draws for itself."""
    _check_choices(shuffle, sampler, batch_sampler)
    chosen = batch_sampler if sampler is None else sampler
    if chosen is None:
        return Epochs(size, batch_size, seed) if shuffle == "epoch" else None
    if not (hasattr(chosen, "__len__") and len(chosen)):
        raise ValueError(f"{type(chosen).__name__} has no length, or the length 0; a sampler needs one")
    cls = Epochs if batch_sampler is None else BatchPasses
    return cls(len(chosen), batch_size, seed, Passes(chosen, seed))


def _check_choices(shuffle: str, sampler: Any, batch_sampler: Any) -> None:
    if shuffle not in ("replacement", "epoch"):
        raise ValueError(
            f"{shuffle=} must be 'replacement' or 'epoch', which is what shuffle=True of a DataLoader does"
        )
    chosen = [
        name for name, one in {"sampler": sampler, "batch_sampler": batch_sampler}.items() if one is not None
    ]
    if len(chosen) == 2 or (chosen and shuffle == "epoch"):
        raise ValueError("shuffle='epoch', sampler and batch_sampler exclude each other; keep one of them")
    if chosen and getattr(sampler, "num_replicas", 1) > 1:
        raise ValueError(
            "a DistributedSampler divides samples among ranks, but tasks are divided by speed here; use "
            "shuffle='epoch', which gives each sample to one task per epoch"
        )
