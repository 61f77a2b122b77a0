"""The state of optimizers and learning-rate schedulers as plain named arrays."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mpi_ata.arrays import State

Values = list[npt.NDArray[Any]]


def pack_optimizer(optimizer: Any, parameters: Sequence[Any]) -> State:
    """Return what an optimizer remembers of its parameters.

    What is like the parameters becomes one array, in their order; a number that is the same for all of them
    is saved once, and anything else as "name.i" for parameter i.
    """
    packed: State = {}
    for name in {key: None for state in optimizer.state.values() for key in state}:
        held = {i: optimizer.state[p].get(name) for i, p in enumerate(parameters) if p in optimizer.state}
        arrays = {i: _array(name, value) for i, value in held.items() if value is not None}
        values = list(arrays.values())
        if len(values) == len(parameters) and _like(values, parameters):
            packed[name] = np.concatenate([value.reshape(-1) for value in values])
        elif len(values) == len(parameters) and _one_number(values):
            packed[name] = values[0]
        else:
            packed |= {f"{name}.{i}": value for i, value in arrays.items()}
    return packed


def _like(values: Values, parameters: Sequence[Any]) -> bool:
    shapes = all(value.shape == tuple(p.shape) for value, p in zip(values, parameters, strict=True))
    return shapes and len({value.dtype for value in values}) == 1


def _one_number(values: Values) -> bool:
    return values[0].ndim == 0 and len({(value.dtype, value.tobytes()) for value in values}) == 1


def _array(name: str, value: Any) -> npt.NDArray[Any]:
    """Return a copy of a tensor or a number."""
    array = np.array(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
    if array.dtype.kind not in "fib":
        raise ValueError(f"the optimizer's {name!r} is of type {type(value).__name__}, which cannot be saved")
    return array


def unpack_optimizer(optimizer: Any, parameters: Sequence[Any], packed: State) -> None:
    """Give an optimizer what `pack_optimizer` returned."""
    optimizer.state.clear()
    sizes = [p.numel() for p in parameters]
    for name, array in packed.items():
        base, _, number = name.rpartition(".")
        if number.isdecimal():
            optimizer.state[parameters[int(number)]][base] = _value(array)
            continue
        if array.ndim and array.size != sum(sizes):
            raise ValueError(f"the saved {name!r} has {array.size} numbers, but the model has {sum(sizes)}")
        parts = np.split(array.reshape(-1), np.cumsum(sizes)[:-1]) if array.ndim else [array] * len(sizes)
        for p, part in zip(parameters, parts, strict=True):
            optimizer.state[p][name] = _value(part.reshape(tuple(p.shape)) if array.ndim else part)


def _value(array: npt.NDArray[Any]) -> Any:
    """Return a tensor; a step counter is a Python number in some optimizers and a 32-bit tensor in others."""
    import torch

    return array.item() if array.ndim == 0 and array.itemsize == 8 else torch.from_numpy(np.array(array))


def pack_groups(optimizer: Any) -> State:
    """Return the numbers of all parameter groups: learning rates, decays and the like."""
    return {
        name: array
        for i, group in enumerate(optimizer.param_groups)
        for name, array in pack_nested(f"group{i}", _numbers(group)).items()
    }


def unpack_groups(optimizer: Any, packed: State) -> None:
    """Give the parameter groups what `pack_groups` returned."""
    for i, group in enumerate(optimizer.param_groups):
        group.update(unpack_nested(f"group{i}", _numbers(group), packed))


def _numbers(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params" and not isinstance(value, bool)}


def pack_nested(name: str, value: Any) -> State:
    """Return all numbers in nested dicts and lists by their dotted names; the rest is left out."""
    if isinstance(value, int | float) or _is_tensor(value):
        return {name: _array(name, value)}
    items: Any = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    return {key: array for at, inner in items for key, array in pack_nested(f"{name}.{at}", inner).items()}


def unpack_nested(name: str, live: Any, packed: State) -> Any:
    """Return a copy of `live` with the numbers that `pack_nested` returned."""
    if isinstance(live, Mapping):
        found: Any = copy.copy(live)
        for key, value in live.items():
            found[key] = unpack_nested(f"{name}.{key}", value, packed)
        return found
    if isinstance(live, list | tuple):
        return type(live)(unpack_nested(f"{name}.{i}", value, packed) for i, value in enumerate(live))
    saved = packed.get(name)
    if saved is None:
        return live
    return live.new_tensor(saved.item()) if _is_tensor(live) else saved.item()


def _is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor that holds one number, as a learning rate may be."""
    return getattr(value, "ndim", None) == 0 and hasattr(value, "new_tensor")
