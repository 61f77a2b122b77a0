"""A model whose weights, gradients and buffers are views into two arrays, like x and like a result."""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mpi_ata.arrays import Array, State
from mpi_ata.errors import RunError, UsageError, one_line
from mpi_ata.torch.devices import import_torch

if TYPE_CHECKING:
    import torch


GRADIENT_NORM = "gradient_norm"  # a log that the update knows: the norm of the mean gradient, before clipping
NOT_LOGGED = -0.0  # in x0, which must be finite; no sum of results, which begin with 0.0, is this


@dataclass(frozen=True)
class Layout:
    """x = [trained weights | float buffers | digits of integers | weight | loss scale, overflow | logs].

    A task's result has the same parts: its gradient, how much it changed buffers and integers, its weight,
    nothing, whether it overflowed, and what it logs; all but the weight itself are multiplied by the weight.
    Without buffers, logs and a loss scale there is no tail.
    """

    weights: int
    buffers: int = 0
    digits: int = 0
    logs: tuple[str, ...] = ()
    scaled: bool = False

    @property
    def has_tail(self) -> bool:
        """Whether x is more than the weights."""
        return bool(self.buffers or self.digits or self.logs or self.scaled)

    @property
    def weight(self) -> int:
        """Where a result has its weight; x has 1.0 there, which shows that its tail is intact."""
        return self.weights + self.buffers + self.digits

    @property
    def scale(self) -> int:
        """Where x has the loss scale; a result has its overflow at the next place."""
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
    def of_digits(self) -> slice:
        """Where the integer buffers are, as digits."""
        return slice(self.weights + self.buffers, self.weight)

    def logged(self, x: Array) -> dict[str, float]:
        """Return the logs of the latest update by name; NaN before the first one."""
        values = x[self.first_log :] if self.logs else x[:0]
        if not values.any() and np.signbit(values).all():  # as in x0
            values = np.full(len(self.logs), np.nan)
        return dict(zip(self.logs, values.tolist(), strict=True))


DIGITS, DIGIT_BITS = 4, 16  # of an int64 in x: sums of them over tasks are exact in float32, too
HALF = 1 << (DIGIT_BITS - 1)
SHIFT = sum(HALF << (DIGIT_BITS * i) for i in range(DIGITS - 1))  # makes all digits but the last one positive


def split_integers(integers: "torch.Tensor") -> "torch.Tensor":
    """Return the digits of integers, each from -HALF to HALF, the lowest first."""
    digits = (integers.reshape(-1, 1) + SHIFT) >> _places(integers.device)
    digits[:, :-1] &= 2 * HALF - 1
    digits[:, :-1] -= HALF
    return digits.reshape(-1).float()


def join_digits(digits: "torch.Tensor") -> "torch.Tensor":
    """Return the integers that have these digits, which may be means: then they are rounded."""
    digits, places = digits.reshape(-1, DIGITS), _places(digits.device)
    whole = digits.floor()
    rest = (digits - whole).double() * (1 << places)
    return (whole.long() << places).sum(1) + rest.sum(1).round().long()


@cache
def _places(device: Any) -> "torch.Tensor":
    """Return by how many bits the digits of an integer are shifted."""
    return import_torch().arange(0, DIGITS * DIGIT_BITS, DIGIT_BITS, device=device)


MODEL = "update.model"  # where a run file has the description of a model
AVERAGED = "update.ema"


def weights_of(method: State, averaged: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Return the state_dict of the point in a run file, and the names of what is not in there."""
    if MODEL not in method:
        raise UsageError("the run has no weights of a PyTorch model; use --x to write its point")
    if averaged and AVERAGED not in method:
        raise UsageError("the run has no running mean of its weights; train with ema=0.999, for example")
    x = np.array(method["x"])
    if averaged:
        x[: method[AVERAGED].size] = method[AVERAGED]
    torch, found, missing = import_torch(), {}, []
    for name, dtype, shape, begin, *digits in json.loads(method[MODEL].item()):
        if begin < 0:
            missing.append(name)
            continue
        values = torch.from_numpy(x[begin : begin + math.prod([*shape, *digits])].copy())
        values = join_digits(values) if digits else values  # older runs have integers as they are
        found[name] = values.reshape(shape).to(getattr(torch, dtype))
    return found, missing


def completed(
    found: Mapping[str, Any], missing: Sequence[str], base: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return a state_dict with what is missing in it taken from another one, and what is missing still."""
    added = {name: base[name] for name in missing if name in base}
    return {**found, **added}, [name for name in missing if name not in base]


SAMPLED = 1000  # numbers of a tensor, at most, that a run file keeps to recognise it
FIRST_SCALE = 2.0**16  # of the loss in half precision, as in torch.amp.GradScaler


class FlatModel:
    """Weights and buffers of a model as one array like x; gradients, changes and logs as another one.

    The running statistics of batch norm and other normalisations are part of x, and so are the buffers whose
    names are given; all other buffers must stay as they are.
    """

    def __init__(
        self, torch: Any, model: Any, device: Any, buffers: Sequence[str], logs: Sequence[str], scaled: bool
    ) -> None:
        self._torch, self.model = torch, model
        weights = _trained_weights(torch, model)
        moving = _moving(torch, model, buffers)
        floats = [buffer for buffer in moving.values() if buffer.is_floating_point()]
        integers = [buffer for buffer in moving.values() if not buffer.is_floating_point()]
        digits = DIGITS * _size(integers)
        self.layout = layout = Layout(_size(weights), _size(floats), digits, tuple(logs), scaled)
        self._values = torch.zeros(layout.size, device=device)
        self._results = torch.zeros(layout.size, device=device)
        self._integers = torch.zeros(_size(integers), dtype=torch.int64, device=device)
        _become_views([*weights, *floats], self._values)
        _become_views(integers, self._integers)
        for weight, gradient in zip(weights, views_like(weights, self._results), strict=True):
            weight.grad = gradient
        self._floats = self._values[layout.of_buffers]
        self._start = self._floats.clone(), self._integers.clone()  # before a task
        self._staging = self._values.cpu()  # the values themselves, if they are in main memory
        self._host = self._staging.numpy()
        self._moving, self._parts = moving, [*weights, *floats, *integers]
        self._before: dict[str, tuple[Any, int]] | None = _versions(model)  # the first task

    def constants(self) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield the bytes of weights and buffers that are not part of x, and take over changes in them."""
        for tensor in self._untrained():
            copy = tensor.detach().cpu().clone(memory_format=self._torch.contiguous_format)
            yield copy.reshape(-1).view(self._torch.uint8).numpy()
            if not self._torch.equal(copy, tensor.detach().cpu()):
                tensor.data = copy.to(tensor.device)

    def _untrained(self) -> list[Any]:
        """Return all dense tensors that are not part of x."""
        own, strided = set(map(id, self._parts)), self._torch.strided
        found = (*self.model.parameters(), *self.model.buffers())
        return [tensor for tensor in found if id(tensor) not in own and tensor.layout == strided]

    def sample(self) -> Array:
        """Return some of the numbers of frozen weights and constant buffers, by which they are recognised."""
        found = []
        for tensor in self._untrained():
            few = tensor.detach().reshape(-1)[:: 1 + tensor.numel() // SAMPLED].cpu()
            few = self._torch.view_as_real(few) if few.is_complex() else few
            found.append(few.double().reshape(-1).numpy())
        return np.concatenate([np.zeros(0), *found])

    def description(self) -> npt.NDArray[np.bytes_]:
        """Return name, type, shape and place in x of each tensor of a state_dict, as JSON, for run files.

        The place of what is not in x is -1.  Integers have a last entry: how many digits each has there.
        """
        digits = {id(part): [] if part.is_floating_point() else [DIGITS] for part in self._parts}
        sizes = [math.prod([part.numel(), *digits[id(part)]]) for part in self._parts]
        places = dict(zip(map(id, self._parts), accumulate(sizes, initial=0), strict=False))
        rows = []
        for name, tensor in self.model.state_dict(keep_vars=True).items():
            kind: tuple[str, list[int]] = "", []  # of what a module returned as its extra state
            if isinstance(tensor, self._torch.Tensor):
                kind = str(tensor.dtype).removeprefix("torch."), list(tensor.shape)
            rows.append((name, *kind, places.get(id(tensor), -1), *digits.get(id(tensor), [])))
        return np.array(json.dumps(rows).encode())

    def point(self) -> Array:
        """Return the point at which the model is, without logs."""
        layout = self.layout
        x: Array = self._values.cpu().numpy().copy()
        if layout.has_tail:
            x[layout.of_digits] = split_integers(self._integers).cpu().numpy()
            x[layout.weight :] = 0
            x[layout.weight] = 1.0
            x[layout.first_log :] = NOT_LOGGED
        if layout.scaled:
            x[layout.scale] = FIRST_SCALE
        return x

    def move_to(self, x: Array) -> None:
        """Give weights and buffers the values of x."""
        layout = self.layout
        if layout.has_tail and x[layout.weight] != 1.0:
            raise RunError(
                "the update has moved what follows the weights in x: buffers and logs; in a loop of your "
                "own, use problem.bind(update) instead of the update"
            )
        np.copyto(self._host, x)
        if self._staging is not self._values:
            self._values.copy_(self._staging)
        if layout.digits:
            self._integers.copy_(join_digits(self._values[layout.of_digits]))
        self._start = self._floats.clone(), self._integers.clone()

    def scale(self) -> "torch.Tensor":
        """Return by how much a loss in half precision is multiplied."""
        return self._values[self.layout.scale]

    def clear(self) -> None:
        """Begin a new result."""
        self._results.zero_()

    def result(self) -> Array:
        """Return the result; the next one reuses the array."""
        result: Array = self._results.cpu().numpy()  # waits for the device, so that its time counts
        return result

    def unscale(self) -> None:
        """Divide the gradient by the loss scale; where it is not finite, it becomes 0, and an overflow."""
        gradient = self._results[: self.layout.weights]
        gradient /= self.scale()
        if not self._torch.isfinite(gradient.sum()):
            gradient.zero_()
            self._results[self.layout.scale + 1] = self._results[self.layout.weight]

    def add_tail(self, weight: float, logs: Mapping[str, Any]) -> None:
        """Add a task's weight, its logs, and what it changed, to the result; and undo what it changed."""
        layout = self.layout
        if not layout.has_tail:
            return
        with self._torch.no_grad():
            self._results[layout.weight] += weight
            for at, name in enumerate(layout.logs, layout.first_log):
                self._results[at] += weight * logs[name]
            floats, integers = self._start
            self._results[layout.of_buffers].add_(self._floats - floats, alpha=weight)
            if layout.digits:
                changes = split_integers(self._integers - integers)
                self._results[layout.of_digits].add_(changes, alpha=weight)
                self._integers.copy_(integers)
        self._floats.copy_(floats)

    def check_buffers(self) -> None:
        """Raise RunError if the first task has changed a buffer that is not part of x."""
        if self._before is None:
            return
        before, self._before = self._before, None
        for name, (buffer, version) in _versions(self.model).items():
            if name in self._moving and buffer is not before[name][0]:
                raise RunError(f"a task has replaced the model's buffer {name!r}; it must change it in place")
            if name not in self._moving and (name not in before or before[name] != (buffer, version)):
                raise RunError(
                    f"a task has changed the model's buffer {name!r}, which would differ from worker to "
                    f"worker; buffers=[{name!r}] makes it part of x, so that it is averaged over tasks"
                )


def _size(tensors: Sequence[Any]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def views_like(tensors: Sequence[Any], flat: Any) -> list[Any]:
    """Return the parts of a flat array that belong to tensors, one after the other, in their shapes."""
    parts = flat[: _size(tensors)].split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def _become_views(tensors: Sequence[Any], flat: Any) -> None:
    """Copy tensors into a flat array, one after the other, and make them views of it."""
    for tensor, view in zip(tensors, views_like(tensors, flat), strict=True):
        view.copy_(tensor.detach())
        tensor.data = view


def running_statistics(torch: Any, model: Any) -> list[Any]:
    """Return the buffers in which normalisations keep their running statistics and counters."""
    norms = torch.nn.modules.batchnorm._NormBase
    modules = [module for module in model.modules() if isinstance(module, norms)]
    return [buffer for module in modules for buffer in module.buffers(recurse=False)]


def _versions(model: Any) -> dict[str, tuple[Any, int]]:
    """Return all buffers of a model, and how often each was changed."""
    return {name: (buffer, buffer._version) for name, buffer in model.named_buffers()}


def _moving(torch: Any, model: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the buffers that tasks may change, by name."""
    known = dict(model.named_buffers())
    if unknown := set(names).difference(known):
        raise UsageError(
            f"the model has no buffer {unknown.pop()!r}; it has: {', '.join(sorted(known)) or 'none'}"
        )
    norms = {id(buffer) for buffer in running_statistics(torch, model)}
    found = {name: buffer for name, buffer in known.items() if name in names or id(buffer) in norms}
    for name, buffer in found.items():
        if buffer.dtype not in (torch.float32, torch.int64):
            raise UsageError(
                f"the model's buffer {name!r} is {buffer.dtype}, but only float32 and int64 can be averaged"
            )
    return found


def trained_parameters(model: Any) -> list[Any]:
    """Return the parameters of a model that have gradients."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _trained_weights(torch: Any, model: Any) -> list[Any]:
    """Return the trained weights, all float32."""
    weights = trained_parameters(model)
    if not weights:
        raise UsageError("the model has no weights to train; all are frozen, or there are none")
    for name, weight in model.named_parameters():
        if weight.requires_grad and weight.dtype != torch.float32:
            raise UsageError(
                f"the model's {name!r} is {weight.dtype}, but only float32 is supported; use model.float()"
            )
    return weights


def write_weights(state: "dict[str, Any]", path: str | Path) -> None:
    """Write a state_dict to a file, which is there as a whole or not at all."""
    partial = Path(f"{path}.{os.getpid()}.part")
    try:
        import_torch().save(state, partial)
        partial.replace(path)
    except (OSError, RuntimeError) as error:  # PyTorch reports a missing folder as the latter
        why = error.strerror if isinstance(error, OSError) else one_line(error)
        raise UsageError(f"{str(path)!r} cannot be written: {why}") from None
    finally:
        partial.unlink(missing_ok=True)


SAFE = "2.10"  # the first PyTorch whose weights_only holds, as far as is known


def read_weights(path: str | Path) -> "dict[str, Any]":
    """Return the state_dict in a file."""
    torch = import_torch()
    if torch.__version__ < SAFE:  # a TorchVersion, which is compared by its numbers
        raise UsageError(
            f"PyTorch {torch.__version__} may run code that is hidden in {str(path)!r}; use {SAFE} or newer "
            f"(pip install 'torch>={SAFE}'), or, if you trust the file, load it into the model yourself"
        )
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    except Exception:
        way = "write one with torch.save(model.state_dict(), ...)"
        raise UsageError(f"{str(path)!r} is not a file of tensors alone; {way}") from None
    return state


def load_weights(model: Any, path: str | Path) -> None:
    """Give a model the weights in a file."""
    state = read_weights(path)
    try:
        model.load_state_dict(state)
    except Exception as error:
        raise UsageError(f"{str(path)!r} is not a state_dict of this model: {one_line(error)}") from None
