"""Random numbers that depend on where they are used, never on what was drawn before.

Philox is a counter-based generator: it encrypts a 256-bit counter with a 128-bit key.
The key holds the seed and the purpose, the upper counter words hold round, worker and task number,
and the lowest word counts what is drawn.  So streams are reproducible and never overlap, no random
state is ever saved, and any rank can create any stream.
"""

import random
from enum import IntEnum

import numpy as np
import numpy.typing as npt
from numpy.random import Generator, Philox
from numpy.random.bit_generator import ISeedSequence


class Purpose(IntEnum):
    """What a stream of random numbers is for."""

    ALLOCATION = 1
    TIMES = 2
    TASK = 3
    CHANGES = 4
    MACHINES = 5
    EPOCHS = 6
    ITEMS = 7


class _Key(ISeedSequence):
    """Passes Philox its key unchanged; otherwise numpy would fetch entropy for each generator."""

    def __init__(self, *words: int) -> None:
        self.words = np.array(words, np.uint64)

    def generate_state(self, n_words: int, dtype: object = np.uint32) -> npt.NDArray[np.uint64]:
        return self.words


class Streams:
    """All random streams of one seed and one purpose."""

    def __init__(self, seed: int, purpose: Purpose) -> None:
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed={seed} must be from 0 to 2**64 - 1")
        self._key = _Key(seed, purpose)
        self._counter = np.zeros(4, np.uint64)  # reused: converting a list would double the cost of a stream

    def at(self, round: int, worker: int = 0, number: int = 0) -> Generator:
        """Return the stream of this round, worker and task number, from its beginning."""
        self._counter[1], self._counter[2], self._counter[3] = number, worker, round
        return Generator(Philox(self._key, counter=self._counter))  # type: ignore[arg-type]  # any ISeedSequence will do


def global_states() -> tuple[object, ...]:
    """Return the states of the generators that all who call random.* and np.random.* share."""
    state = np.random.get_state(legacy=False)["state"]  # noqa: NPY002  (to see whether somebody uses it)
    return random.getstate(), *(np.asarray(part).tobytes() for part in state.values())
