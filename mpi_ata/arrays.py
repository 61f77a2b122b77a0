"""The kinds of arrays that travel through the package, and states made of them."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.int64]

State = dict[str, npt.NDArray[Any]]  # all that something must remember, as plain named arrays


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
