"""Values made of arrays and numbers as named arrays, for run files, and back.

The arrays of `x = {"mean": ..., "rows": [...]}` are named x.mean, x.rows.0 and so on.  `x.form` describes in
JSON how to put them together again; numbers are in it, and are saved beside it only for readers of the file.
"""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from mpi_ata.arrays import State
from mpi_ata.packing import KINDS, described, rebuilt, reject_mask


def to_state(value: Any, name: str) -> State:
    """Return a value as named arrays; an array of real numbers is saved as it is."""
    reject_mask(value, name)
    if isinstance(value, np.ndarray) and _native(value.dtype):
        return {name: value.copy()}
    state: State = {f"{name}.form": np.array(b"")}  # no array of the value may have this name

    def store(array: npt.NDArray[Any], path: str) -> Any:
        key = _free(state, _key(path))
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        state[key] = array.copy() if _native(array.dtype) else raw
        return [key, array.dtype.str, *array.shape]

    form = np.array(described(value, store, name))
    for path, number in _numbers(value, name):
        state[_free(state, _key(path))] = number
    return state | {f"{name}.form": form}


def from_state(state: State, name: str) -> Any:
    """Return the value that was saved under this name; ValueError where it is not complete."""
    if f"{name}.form" not in state:
        if name not in state:
            raise ValueError(f"the state has no {name!r}; it has: {', '.join(state) or 'nothing'}")
        return np.array(state[name])

    def fetch(description: Any) -> npt.NDArray[Any]:
        key, kind, *shape = description
        dtype, array = np.dtype(str(kind)), np.array(state[key])
        if dtype.kind not in KINDS:
            raise ValueError(f"{key} is of {kind}")
        if _native(dtype):
            return array.astype(dtype, casting="equiv").reshape(shape)
        return array.view(dtype).reshape(shape) if array.size else np.empty(shape, dtype)

    form = state[f"{name}.form"]
    if form.dtype.kind != "S" or form.ndim:
        raise ValueError(f"{name}.form is of {form.dtype} and shape {form.shape}, but must be one string")
    return rebuilt(form.item(), fetch)


def _native(dtype: np.dtype[Any]) -> bool:
    """Return whether an array is saved as it is: real numbers in the usual byte order, which all can read."""
    return dtype.kind in "biuf" and dtype.itemsize <= 8 and dtype.isnative


def _numbers(value: Any, path: str) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yield the plain numbers in a value, each entry of a dict and each list of them as one array."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from _numbers(entry, f"{path}.{key}")
    elif isinstance(value, list | tuple) and not all(isinstance(entry, int | float) for entry in value):
        for i, entry in enumerate(value):
            if isinstance(entry, dict | list | tuple):
                yield from _numbers(entry, f"{path}.{i}")
    elif isinstance(value, int | float | list | tuple) and not isinstance(value, np.generic):
        numbers = np.array(value)
        if _native(numbers.dtype):
            yield path, numbers


def _key(path: str) -> str:
    return re.sub(r"\W+", ".", path).strip(".")


def _free(state: State, key: str) -> str:
    """Return a name that no array has yet."""
    while key in state:
        key += "~"
    return key
