"""What is where in the point of a PyTorch model: trained weights, then a tail that no optimizer moves."""

from dataclasses import dataclass

import numpy as np

from mpi_ata.arrays import Array

GRADIENT_NORM = "gradient_norm"  # a log that the update knows: the norm of the mean gradient, before clipping
NOT_LOGGED = -0.0  # in x0, which must be finite; no sum of results, which begin with 0.0, is this


@dataclass(frozen=True)
class Layout:
    """x = [trained weights | float buffers | counters | weight | loss scale, overflow | logs].

    A task's result has the same parts: its gradient, how much it changed buffers and counters, its weight,
    nothing, whether it overflowed, and what it logs; all but the weight itself are multiplied by the weight.
    Without buffers, logs and a loss scale there is no tail.
    """

    weights: int
    buffers: int = 0
    counters: int = 0
    logs: tuple[str, ...] = ()
    scaled: bool = False

    @property
    def has_tail(self) -> bool:
        """Whether x is more than the weights."""
        return bool(self.buffers or self.counters or self.logs or self.scaled)

    @property
    def weight(self) -> int:
        """Where a result has its weight; x has 1.0 there, which shows that its tail is intact."""
        return self.weights + self.buffers + self.counters

    @property
    def scale(self) -> int:
        """Where x has the loss scale; a result has its overflow one further."""
        return self.weight + 1

    @property
    def size(self) -> int:
        """How many numbers x has."""
        return self.first_log + len(self.logs) if self.has_tail else self.weights

    @property
    def first_log(self) -> int:
        """Where the logs begin."""
        return self.weight + 1 + 2 * self.scaled

    @property
    def of_buffers(self) -> slice:
        """Where the float buffers are."""
        return slice(self.weights, self.weights + self.buffers)

    @property
    def of_counters(self) -> slice:
        """Where the integer buffers are."""
        return slice(self.weights + self.buffers, self.weight)

    def logged(self, x: Array) -> dict[str, float]:
        """Return the logs of the latest update by name; NaN before the first one."""
        values = x[self.first_log :] if self.logs else x[:0]
        if not values.any() and np.signbit(values).all():  # as in x0
            values = np.full(len(self.logs), np.nan)
        return dict(zip(self.logs, values.tolist(), strict=True))
