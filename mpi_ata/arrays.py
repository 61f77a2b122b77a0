"""The kinds of arrays that travel through the package, and states made of them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

State = dict[str, npt.NDArray[Any]]  # all that something must remember, as plain named arrays

FEW = 64  # numbers that are added up faster one by one than as an array


def total(counts: IntArray) -> int:
    """The sum of counts, one for each worker."""
    return sum(counts.tolist()) if len(counts) <= FEW else int(np.add.reduce(counts))


BLOCK = 1 << 15  # numbers: several arrays of so many stay in the cache while they are worked on
LARGE = 4 * BLOCK  # below this the whole of them does


def blocks(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Views of large arrays, part by part: memory is walked through once for all that is done to them.

    Where arrays are small, or do not lie in memory in one piece, they are the only part.
    """
    size = arrays[0].size
    if size < LARGE or not all(array.flags.c_contiguous for array in arrays):
        yield arrays
        return
    rows = [array.reshape(-1) for array in arrays]
    for begin in range(0, size, BLOCK):
        yield tuple(row[begin : begin + BLOCK] for row in rows)


def entry(state: State, name: str, like: npt.ArrayLike) -> npt.NDArray[Any]:
    """A copy of one array of a state, refused where it has not the shape and kind of numbers of `like`."""
    if name not in state:
        raise ValueError(f"the state has no {name!r}; it has: {', '.join(state) or 'nothing'}")
    found, wanted = np.array(state[name]), np.asarray(like)
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        raise ValueError(
            f"{name!r} of the state is {found.dtype} of shape {found.shape}, "
            f"but this run needs {wanted.dtype} of shape {wanted.shape}"
        )
    return found
