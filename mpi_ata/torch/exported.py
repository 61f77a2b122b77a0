"""The state_dict of a model from its point: with the model at hand, or from what a run file keeps of it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mpi_ata.arrays import Array, State
from mpi_ata.errors import UsageError

MODEL = "update.model"  # where a run file has the description of a model
AVERAGED = "update.ema"


class Entry(NamedTuple):
    """One tensor of a state_dict; `begin` is where it is in x, or -1 if it is not there."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int


def describe_model(model: Any, moving: Sequence[Any]) -> npt.NDArray[np.bytes_]:
    """Return which part of x each tensor of a state_dict is; x consists of the tensors `moving`."""
    begins: dict[int, int] = {}
    end = 0
    for tensor in moving:
        begins[id(tensor)], end = end, end + tensor.numel()
    tensors = model.state_dict(keep_vars=True).items()
    rows = [(name, *_kind(tensor), begins.get(id(tensor), -1)) for name, tensor in tensors]
    return np.array(json.dumps(rows).encode())


def _kind(tensor: Any) -> tuple[str, list[int]]:
    if not hasattr(tensor, "dtype"):  # what a module returned as its extra state
        return "", []
    return str(tensor.dtype).removeprefix("torch."), list(tensor.shape)


def weights_of(method: State, averaged: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Return the state_dict of the point in a run file, and the names of what is not in there."""
    if MODEL not in method:
        raise UsageError("the run has no weights of a PyTorch model; use --x to write its point")
    if averaged and AVERAGED not in method:
        raise UsageError("the run has no running mean of its weights; train with ema=0.999, say")
    x = np.array(method["x"])
    if averaged:
        x[: method[AVERAGED].size] = method[AVERAGED]
    entries = [Entry(*row) for row in json.loads(method[MODEL].item())]
    found = {entry.name: _tensor(entry, x) for entry in entries if entry.begin >= 0}
    return found, [entry.name for entry in entries if entry.begin < 0]


def _tensor(entry: Entry, x: Array) -> Any:
    import torch

    end = entry.begin + int(np.prod(entry.shape))
    values = torch.from_numpy(x[entry.begin : end].copy()).reshape(tuple(entry.shape))
    return values.to(getattr(torch, entry.dtype))


def completed(
    found: Mapping[str, Any], missing: Sequence[str], base: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return a state_dict with what is missing in it taken from another one, and what is missing still."""
    added = {name: base[name] for name in missing if name in base}
    return {**found, **added}, [name for name in missing if name not in base]
