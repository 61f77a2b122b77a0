"""Rounds of the bandit compiled by numba, with the same decisions as the allocator classes, bit for bit.

numba draws from numpy's generators.  A new one for each round and task number would cost more than the round
itself, so one of each purpose is moved to where a stream begins, by writing to the counter inside it.
"""

# mypy: ignore-errors
# Compiled functions have no annotations: numba infers its own types.

import ctypes
from typing import Any

import numba
import numpy as np

from mpi_ata.errors import RunError
from mpi_ata.randomness import Purpose, Streams

USED_UP = 4  # words of the block at hand: the next one is computed from the counter

compiled = numba.njit(cache=True, error_model="numpy")


class _Philox(ctypes.Structure):
    """The state of numpy's generator, philox_state in its philox.h."""

    _fields_ = (
        ("counter", ctypes.POINTER(ctypes.c_uint64 * 4)),
        ("key", ctypes.POINTER(ctypes.c_uint64 * 2)),
        ("position", ctypes.c_int32),
        ("block", ctypes.c_uint64 * 4),
        ("has_half", ctypes.c_int32),  # whether half of a word is left over
        ("half", ctypes.c_uint32),
    )


def movable(seed: int, purpose: Purpose) -> Any:
    """Return a generator, its counter, where it is in a block, and whether half a word is left over."""
    rng = Streams(seed, purpose).at(0)
    state = _Philox.from_address(rng.bit_generator.ctypes.state_address)
    parts = [
        ctypes.c_int32.from_buffer(state, field.offset) for field in (_Philox.position, _Philox.has_half)
    ]
    counter = np.ctypeslib.as_array(state.counter.contents)
    stream = (rng, counter, *(np.frombuffer(part, np.int32) for part in parts))
    if move.py_func(stream, 3, 1).random() != Streams(seed, purpose).at(3, number=1).random():
        raise RunError(f"numpy {np.__version__} lays out its generators differently; go without numba")
    return stream


@compiled
def move(stream, round, number):
    """Return the generator at the beginning of the stream of a round and a task number."""
    rng, counter, position, has_half = stream
    counter[0], counter[1], counter[2], counter[3] = 0, number, 0, round
    position[0], has_half[0] = USED_UP, 0
    return rng


@compiled
def exponentials(stream, round, number, drawn):
    """Fill `drawn` from the stream of a task number."""
    rng = move(stream, round, number)
    for i in range(len(drawn)):
        drawn[i] = rng.standard_exponential()


@compiled
def spread(zeros, budget, stream, round, a):
    """Share the budget equally among the workers `zeros`; the remainder as numpy's choice() does."""
    share, rest = budget // len(zeros), budget % len(zeros)
    a[zeros] = share
    rng = move(stream, round, 0)
    for j in range(len(zeros) - rest, len(zeros)):  # Floyd's algorithm
        chosen = rng.integers(0, j + 1)
        a[zeros[j if a[zeros[chosen]] > share else chosen]] += 1


@compiled
def fill(s, budget, a):
    """Allocate the budget task by task, each to the worker whose load would be least."""
    products = s.copy()
    for _ in range(budget):
        least = np.argmin(products)
        a[least] += 1
        products[least] = (a[least] + 1) * s[least]


@compiled
def _decide(empirical, factor, budget, stream, k, K, T):
    """Return the quotas of round k by ATA-Empirical, with the factor as eta, or by ATA, with it as alpha."""
    samples = np.maximum(K, 1)
    mean, width = T / samples, np.log(2.0 * k * k) / samples
    width = 2.0 * (width + np.sqrt(width))
    s = mean * np.maximum(1.0 - factor * width, 0.0) if empirical else np.maximum(mean - factor * width, 0.0)
    a, zeros = np.zeros(len(K), np.int64), np.flatnonzero(s == 0.0)
    if len(zeros):
        spread(zeros, budget, stream, k, a)
    else:
        fill(s, budget, a)
    return a


@compiled
def _observe(offset, scales, stream, k, K, T, squares, least, arrivals, a):
    """Learn the times of round k, (offset + Exp(1)) scale_i for each of a_i tasks, and return its length."""
    n = len(a)
    drawn, sums, errors = np.empty(n), np.zeros(n), np.zeros(n)
    for number in range(a.max()):
        busy = np.flatnonzero(a > number)
        exponentials(stream, k, number, drawn[: busy[-1] + 1])
        for i in busy:
            seconds = (offset + drawn[i]) * scales[i]
            raised = sums[i] + seconds  # compensated, so as accurate as math.fsum
            part = raised - sums[i]
            errors[i] += (sums[i] - (raised - part)) + (seconds - part)
            sums[i] = raised
            squares[i] += seconds * seconds
            least[i] = min(least[i], seconds)
    K += a
    T += sums + errors
    arrivals += a > 0
    return sums.max()


@compiled
def _play(empirical, factor, budget, offset, scales, means, best, choices, times, k, rounds, K, T, *stats):
    clock = regret = 0.0
    for j in range(k + 1, k + rounds + 1):
        a = _decide(empirical, factor, budget, choices, j, K, T)
        clock += _observe(offset, scales, times, j, K, T, *stats, a)
        regret += (a * means).max() - best
    return clock, regret


def play(rule: Any, law: Any, loss: Any, seed: int, k: int, rounds: int, sums: Any) -> tuple[float, float]:
    """Play rounds after round k, update the sums of each worker, and return their clock and regret."""
    streams = movable(seed, Purpose.ALLOCATION), movable(seed, Purpose.TIMES)
    return _play(*rule, *law, *loss, *streams, k, rounds, *sums)
