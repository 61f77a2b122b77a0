"""Rounds of the bandit compiled by numba, with the same decisions as the allocator classes, bit for bit.

It draws from the streams of mpi_ata.randomness as numpy does: Philox blocks, exponentials from a ziggurat,
subsets by Floyd's algorithm.  Tests compare both.
"""

# mypy: ignore-errors
# Compiled functions have no annotations: numba infers its own types.

from decimal import Decimal, localcontext

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from mpi_ata.arrays import Array
from mpi_ata.randomness import Purpose

U = np.uint64
MULTIPLIER_0, MULTIPLIER_1 = U(0xD2E7470EE14C6C93), U(0xCA5A826395121157)  # of Philox 4x64
WEYL_0, WEYL_1 = U(0x9E3779B97F4A7C15), U(0xBB67AE8584CAA73B)
LOW = U(0xFFFFFFFF)
TIMES, ALLOCATION = U(Purpose.TIMES), U(Purpose.ALLOCATION)
TAIL = Decimal(
    "7.697117470131049714044628048015215499115"
)  # start of the tail of exp(-x), beyond 255 strips of equal area


def _ziggurat() -> tuple[Array, Array, Array]:
    """Return the strips in the order of numpy: widths, heights, and the part of each inside the curve."""
    with localcontext() as context:
        context.prec = 40
        area = (TAIL + 1) * (-TAIL).exp()
        x = [TAIL]
        while len(x) < 255:
            x.append(-(area / x[-1] + (-x[-1]).exp()).ln())
        outer, inner = [TAIL + 1, *x[::-1]], [TAIL, Decimal(0), *x[:0:-1]]
        scale = Decimal(2) ** 53
        widths = np.array([float(width / scale) for width in outer])
        heights = np.array([1.0, *(float((-width).exp()) for width in x[::-1])])
        inside = np.array([float(int(i / o * scale)) for i, o in zip(inner, outer, strict=True)])
        return widths, heights, inside


WIDTHS, HEIGHTS, INSIDE = _ziggurat()
START_OF_TAIL = float(TAIL)

compiled = numba.njit(cache=True, error_model="numpy")


@intrinsic
def _high(typing, a, b):
    """Return the upper half of the product of two words, an instruction that Python does not expose."""

    def generate(context, builder, signature, words):
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(word, wide) for word in words))
        return builder.trunc(builder.lshr(product, wide(64)), words[0].type)

    return numba.uint64(numba.uint64, numba.uint64), generate


@compiled
def _encipher(words, block, seed, purpose, round, number):
    """Compute the next four words of a stream by ten rounds of Philox."""
    c0, c1, c2, c3, k0, k1 = U(block), U(number), U(0), U(round), U(seed), U(purpose)
    for _ in range(10):
        high_0, low_0 = _high(MULTIPLIER_0, c0), MULTIPLIER_0 * c0
        high_1, low_1 = _high(MULTIPLIER_1, c2), MULTIPLIER_1 * c2
        c0, c1, c2, c3 = high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0
        k0, k1 = k0 + WEYL_0, k1 + WEYL_1
    words[0], words[1], words[2], words[3] = c0, c1, c2, c3


@compiled
def exponentials(seed, round, number, words, drawn):
    """Fill `drawn` from the stream of a task number."""
    position = 0  # in the stream
    for i in range(len(drawn)):
        while True:
            if position % 4 == 0:
                _encipher(words, position // 4 + 1, seed, TIMES, round, number)
            word = words[position % 4] >> U(3)
            position += 1
            strip, point = np.int64(word & U(0xFF)), float(np.int64(word >> U(8)))
            drawn[i] = point * WIDTHS[strip]
            if point < INSIDE[strip]:
                break
            if position % 4 == 0:
                _encipher(words, position // 4 + 1, seed, TIMES, round, number)
            uniform = np.int64(words[position % 4] >> U(11)) * 2.0**-53
            position += 1
            if strip == 0:
                drawn[i] = START_OF_TAIL - np.log1p(-uniform)
                break
            if (HEIGHTS[strip - 1] - HEIGHTS[strip]) * uniform + HEIGHTS[strip] < np.exp(-drawn[i]):
                break


@compiled
def _spread(zeros, budget, seed, round, words, a):
    """Share the budget equally among the workers `zeros`; the remainder by Floyd's algorithm."""
    share, rest = budget // len(zeros), budget % len(zeros)
    for i in zeros:
        a[i] = share
    position = 0  # in the stream, in half words
    for j in range(len(zeros) - rest, len(zeros)):
        bound, chosen = U(j + 1), 0
        while j > 0:  # Lemire's method for a number from 0 to j
            if position % 8 == 0:
                _encipher(words, position // 8 + 1, seed, ALLOCATION, round, 0)
            product = ((words[position % 8 // 2] >> U(position % 2 * 32)) & LOW) * bound
            position += 1
            chosen = np.int64(product >> U(32))
            if product & LOW >= (LOW + U(1) - bound) % bound:
                break
        a[zeros[j if a[zeros[chosen]] > share else chosen]] += 1


@compiled
def fill(s, budget, products, a):
    """Allocate the budget task by task, each to the worker whose load would be least."""
    products[:] = s
    for _ in range(budget):
        least = 0
        for i in range(1, len(s)):
            if products[i] < products[least]:
                least = i
        a[least] += 1
        products[least] = (a[least] + 1) * s[least]


@compiled
def _decide(empirical, factor, budget, seed, k, K, T, words, s, products, zeros, a):
    """Decide the quotas of round k by ATA-Empirical, with the factor as eta, or by ATA, with it as alpha."""
    log = np.log(2.0 * k * k)
    count = 0
    for i in range(len(K)):
        a[i] = 0
        samples = max(K[i], 1)
        mean, width = T[i] / samples, log / samples
        width = 2.0 * (width + np.sqrt(width))
        s[i] = mean * max(1.0 - factor * width, 0.0) if empirical else max(mean - factor * width, 0.0)
        if s[i] == 0.0:
            zeros[count] = i
            count += 1
    if count:
        _spread(zeros[:count], budget, seed, k, words, a)
    else:
        fill(s, budget, products, a)


@compiled
def _observe(offset, scales, seed, k, K, T, squares, least, arrivals, words, drawn, sums, errors, a):
    """Learn the times of round k: worker i takes (offset + Exp(1)) scale_i for each of its a_i tasks."""
    sums[:] = 0.0
    errors[:] = 0.0
    last = len(a) - 1
    for number in range(a.max()):
        while a[last] <= number:
            last -= 1
        exponentials(seed, k, number, words, drawn[: last + 1])
        for i in range(last + 1):
            if a[i] > number:  # compensated sum, as accurate as math.fsum
                seconds = (offset + drawn[i]) * scales[i]
                raised = sums[i] + seconds
                part = raised - sums[i]
                errors[i] += (sums[i] - (raised - part)) + (seconds - part)
                sums[i] = raised
                squares[i] += seconds * seconds
                least[i] = min(least[i], seconds)
    for i in range(len(a)):
        K[i] += a[i]
        T[i] += sums[i] + errors[i]
        arrivals[i] += a[i] > 0


@compiled
def play(
    empirical, factor, budget, offset, scales, means, best, seed, k, K, T, squares, least, arrivals, rounds
):
    """Play rounds after round k, update the sums of each worker, and return their clock and regret."""
    n = len(K)
    words = np.empty(4, np.uint64)
    s, products, drawn, sums, errors = np.empty(n), np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    zeros, a = np.empty(n, np.int64), np.empty(n, np.int64)
    clock = regret = 0.0
    for j in range(k + 1, k + rounds + 1):
        _decide(empirical, factor, budget, seed, j, K, T, words, s, products, zeros, a)
        _observe(offset, scales, seed, j, K, T, squares, least, arrivals, words, drawn, sums, errors, a)
        clock += sums.max()
        regret += (a * means).max() - best
    return clock, regret
