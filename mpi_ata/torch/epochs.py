"""Epochs without replacement: one sequence of samples, a permutation of the dataset after the other."""

from functools import lru_cache

import numpy as np

from mpi_ata.arrays import IntArray
from mpi_ata.randomness import Purpose, Streams


class Epochs:
    """Batches of samples, each sample once per epoch; a batch may end one epoch and begin the next."""

    def __init__(self, size: int, batch_size: int, seed: int) -> None:
        self._size, self._batch_size, self._streams = size, batch_size, Streams(seed, Purpose.EPOCHS)
        self._permutation = lru_cache(maxsize=2)(self._drawn)

    def _drawn(self, epoch: int) -> IntArray:
        return self._streams.at(epoch).permutation(self._size)

    def batch(self, index: int) -> IntArray:
        """Return the samples of one batch, which depend on the seed and its index alone."""
        places = np.arange(index * self._batch_size, (index + 1) * self._batch_size)
        epochs, places = np.divmod(places, self._size)
        return np.array(
            [self._permutation(e)[p] for e, p in zip(epochs.tolist(), places.tolist(), strict=True)]
        )
