"""Values made of arrays and numbers as one array of bytes, and back.

A packed value is a header, a description in JSON, and the raw data of its arrays, all aligned.  Sizes are
checked before anything is read.  Nothing is pickled, and reading never executes anything.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

from mpi_ata.arrays import State
from mpi_ata.errors import BadResultError, require

Packed = npt.NDArray[Any]  # of uint8

HEADER = Struct("<qq")  # bytes in all, and of the description
ALIGNMENT = 16
KINDS = "biufcSUmM"  # numpy's letters for what arrays may hold: no Python objects
PLAIN = (type(None), bool, int, float, str)
EMPTY: Packed = np.empty(0, np.uint8)

Store = Callable[[npt.NDArray[Any], str], Any]  # puts an array aside and returns what describes it
Fetch = Callable[[Any], npt.NDArray[Any]]  # returns the array for such a description


def pack(value: Any, name: str = "the value") -> Packed:
    """Return a value as bytes; `name` says in an error what it is."""
    parts: list[Packed] = []

    def store(array: npt.NDArray[Any], _: str) -> Any:
        parts.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        return [array.dtype.str, *array.shape]

    text = described(value, store, name)
    offset = _aligned(HEADER.size + len(text))
    data = np.zeros(offset + sum(_aligned(len(part)) for part in parts), np.uint8)
    data[: HEADER.size + len(text)] = np.frombuffer(HEADER.pack(len(data), len(text)) + text, np.uint8)
    for part in parts:
        data[offset : offset + len(part)] = part
        offset += _aligned(len(part))
    return data


def unpack(data: Packed) -> Any:
    """Return the value at the beginning of packed bytes; its arrays are views of them."""
    return _first(data)[0]


def unpack_all(data: Packed) -> list[Any]:
    """Return the values in packed bytes that were joined end to end."""
    values = []
    while len(data):
        value, size = _first(data)
        values.append(value)
        data = data[size:]
    return values


def described(value: Any, store: Store, name: str) -> bytes:
    """Return the JSON description of a value, whose arrays are put aside by `store`."""
    try:
        return json.dumps(_describe(value, store, name), separators=(",", ":")).encode()
    except RecursionError:
        raise BadResultError(f"{name} is nested too deeply, or contains itself") from None
    except ValueError as error:  # Python prints no whole numbers of more than 4300 digits
        raise BadResultError(f"{name} cannot be sent or saved: {error}") from None


def rebuilt(text: bytes, fetch: Fetch) -> Any:
    """Return the value of a description, whose arrays `fetch` returns; ValueError where it is not one."""
    try:
        return _rebuild(json.loads(text), fetch)
    except _DAMAGED as error:
        raise ValueError(f"not the description of a value: {error!r}") from None


def _describe(value: Any, store: Store, name: str) -> Any:
    """Return what JSON can hold: plain values as they are, all others in an object that names their kind."""
    if isinstance(value, np.ma.MaskedArray):
        rule = "whose mask cannot be sent or saved; use filled(), or .data and .mask"
        raise BadResultError(f"{name} is a masked array, {rule}")
    if isinstance(value, np.generic | np.ndarray):
        if value.dtype.kind not in KINDS:
            raise BadResultError(f"{name} is an array of {value.dtype}, but {_RULE}")
        return {"number" if isinstance(value, np.generic) else "array": store(np.asarray(value), name)}
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, dict):
        keys = [_describe(key, store, f"a key of {name}") for key in value]
        entries = [_describe(entry, store, f"{name}[{key!r}]") for key, entry in value.items()]
        return {"dict": [keys, entries]}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_describe(entry, store, f"{name}[{i}]") for i, entry in enumerate(value)]}
    raise BadResultError(f"{name} is of type {type(value).__name__}, but {_RULE}")


# Of what JSON or numpy say about bytes that are no description; a SyntaxError is about the name of a dtype.
_DAMAGED = (RecursionError, TypeError, KeyError, IndexError, OverflowError, AttributeError, SyntaxError)
_RULE = "a value must be made of arrays, numbers, strings, None, dict, list and tuple"


def _rebuild(found: Any, fetch: Fetch) -> Any:
    if isinstance(found, PLAIN):
        return found
    ((kind, content),) = found.items()
    match kind:
        case "array":
            return fetch(content)
        case "number":
            return fetch(content)[()]
        case "complex":
            return complex(*content)
        case "list":
            return [_rebuild(entry, fetch) for entry in content]
        case "tuple":
            return tuple(_rebuild(entry, fetch) for entry in content)
        case "dict":
            keys, entries = ([_rebuild(entry, fetch) for entry in part] for part in content)
            return dict(zip(keys, entries, strict=True))
    raise ValueError(f"unknown kind {kind!r}")


def _first(data: Packed) -> tuple[Any, int]:
    """Return the first value in packed bytes, and how many bytes it takes."""
    if len(data) < HEADER.size:
        raise BadResultError(f"a packed value is cut off after {len(data)} bytes")
    size, length = HEADER.unpack(data[: HEADER.size].tobytes())
    if not (0 <= length <= size - HEADER.size and size <= len(data) and size % ALIGNMENT == 0):
        raise BadResultError(f"a packed value claims {size} bytes, of which {length} describe it")
    text, rest = data[HEADER.size : HEADER.size + length], data[_aligned(HEADER.size + length) : size]

    def fetch(description: Any) -> npt.NDArray[Any]:
        nonlocal rest
        kind, *shape = description
        dtype = _dtype(kind)
        if not all(isinstance(n, int) and n >= 0 for n in shape):
            raise ValueError(f"there is no array of shape {shape!r}")
        extent = math.prod(shape) * dtype.itemsize  # in Python's integers, which never overflow
        if extent > len(rest):
            raise ValueError(f"there is no array of shape {shape!r} and {extent} bytes")
        own, rest = rest[:extent], rest[_aligned(extent) :]
        return np.ndarray(shape, dtype, own) if extent else np.empty(shape, dtype)

    try:
        return rebuilt(text.tobytes(), fetch), size
    except ValueError as error:
        raise BadResultError(f"a packed value is damaged: {error}") from None


def _dtype(kind: Any) -> np.dtype[Any]:
    """Return the type of arrays that a description names, if a value may have such arrays."""
    dtype = np.dtype(str(kind))
    if dtype.kind not in KINDS:
        raise ValueError(f"no array is of {kind!r}")
    return dtype


def _aligned(size: int) -> int:
    """Return a size rounded up, so that the next array begins where the processor likes it."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def to_state(value: Any, name: str) -> State:
    """Return a value as named arrays; an array of real numbers is saved as it is."""
    if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray) and _native(value.dtype):
        return {name: value.copy()}
    state: State = {f"{name}.form": np.array(b"")}  # no array of the value may have this name

    def store(array: npt.NDArray[Any], path: str) -> Any:
        key = _free(state, path)
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        state[key] = array.copy() if _native(array.dtype) else raw
        return [key, array.dtype.str, *array.shape]

    form = np.array(described(value, store, name))
    for path, number in _numbers(value, name):
        state[_free(state, path)] = number
    return state | {f"{name}.form": form}


def from_state(state: State, name: str) -> Any:
    """Return the value that was saved under this name; ValueError where it is not complete."""
    if f"{name}.form" not in state:
        if name not in state:
            raise ValueError(f"the state has no {name!r}; it has: {', '.join(state) or 'nothing'}")
        return np.array(state[name])

    def fetch(description: Any) -> npt.NDArray[Any]:
        key, kind, *shape = description
        dtype, array = _dtype(kind), np.array(state[key])
        if _native(dtype):
            return array.astype(dtype, casting="equiv").reshape(shape)
        return array.view(dtype).reshape(shape) if array.size else np.empty(shape, dtype)

    form = state[f"{name}.form"]
    rule = f"{name}.form is of {form.dtype} and shape {form.shape}, but must be one string"
    require(form.dtype.kind == "S" and not form.ndim, rule)
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


def _free(state: State, path: str) -> str:
    """Return the name of an array at this place of a value, which no other has yet."""
    key = re.sub(r"\W+", ".", path).strip(".")
    while key in state:
        key += "~"
    return key
