"""Array types, states made of arrays, and operations on large arrays."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

State = dict[str, npt.NDArray[Any]]  # everything needed to restore an object, as plain named arrays


def described(value: object) -> str:
    """Return what kind of thing a user's code has returned."""
    if value is None:
        return "None (is a return statement missing?)"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    shown = repr(value) if isinstance(value, str | complex | int | float | list | tuple | dict) else ""
    return f"{shown} of type {type(value).__name__}" if 0 < len(shown) < 40 else f"a {type(value).__name__}"


FEW = 64  # numbers that Python adds up faster than numpy


def total(counts: IntArray) -> int:
    """Return the sum of counts, one per worker."""
    return sum(counts.tolist()) if len(counts) <= FEW else int(np.add.reduce(counts))


BLOCK = 1 << 15  # numbers: several arrays of this size fit into the cache together
LARGE = 4 * BLOCK  # numbers: smaller arrays fit into the cache as a whole


def blocks(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Yield views of large arrays block by block, so that several operations read memory only once.

    Small and non-contiguous arrays are yielded as a single block.
    """
    size = arrays[0].size
    if size < LARGE or not all(array.flags.c_contiguous for array in arrays):
        yield arrays
        return
    rows = [array.reshape(-1) for array in arrays]
    for begin in range(0, size, BLOCK):
        yield tuple(row[begin : begin + BLOCK] for row in rows)


def entry(state: State, name: str, like: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return a copy of one array of a state; its shape and dtype must be those of `like`."""
    if name not in state:
        raise ValueError(f"the state has no {name!r}; it has: {', '.join(state) or 'nothing'}")
    found, wanted = np.array(state[name]), np.asarray(like)
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        raise ValueError(
            f"{name!r} of the state is {found.dtype} of shape {found.shape}, "
            f"but this run needs {wanted.dtype} of shape {wanted.shape}"
        )
    return found


def saved(thing: object, names: Sequence[str]) -> State:
    """Return copies of these attributes, arrays and numbers, as a state."""
    return {name: np.array(vars(thing)[name]) for name in names}


def restore_saved(thing: object, state: State, names: Sequence[str]) -> None:
    """Set attributes to what was saved of them; none if one of them is not like the present one."""
    own = vars(thing)
    found = {name: entry(state, name, own[name]) for name in names}
    own.update({name: x if isinstance(own[name], np.ndarray) else x.item() for name, x in found.items()})
