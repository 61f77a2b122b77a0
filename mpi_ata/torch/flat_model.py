"""A model whose weights, gradients and buffers are views into two arrays, like x and like a result."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mpi_ata.arrays import Array
from mpi_ata.errors import RunError
from mpi_ata.torch.exported import describe_model
from mpi_ata.torch.layout import NOT_LOGGED, Layout
from mpi_ata.torch.statistics import running_statistics

if TYPE_CHECKING:
    import torch

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
        weights = _trained(torch, model)
        moving = _moving(torch, model, buffers)
        floats = [buffer for buffer in moving.values() if buffer.is_floating_point()]
        counters = [buffer for buffer in moving.values() if not buffer.is_floating_point()]
        self.layout = Layout(_size(weights), _size(floats), _size(counters), tuple(logs), scaled)
        self._values = torch.zeros(self.layout.size, device=device)
        self._results = torch.zeros(self.layout.size, device=device)
        self._counts = torch.zeros(_size(counters), dtype=torch.int64, device=device)
        _become_views([*weights, *floats], self._values)
        _become_views(counters, self._counts)
        _give_gradients(weights, self._results)
        tail = slice(self.layout.weights, self.layout.weight)  # buffers and counters
        self._tail, self._tail_results = self._values[tail], self._results[tail]
        self._start = self._tail.clone()  # before a task
        self._staging = self._values.cpu()  # the values themselves, if they are in main memory
        self._host = self._staging.numpy()
        self._moving, self._parts = moving, [*weights, *floats, *counters]
        self._constants: dict[str, tuple[Any, int]] | None = _versions(model)

    def description(self) -> npt.NDArray[np.bytes_]:
        """Return which part of x each tensor of the model's state_dict is, for run files."""
        return describe_model(self.model, self._parts)

    def point(self) -> Array:
        """Return the point at which the model is, without logs."""
        layout = self.layout
        x: Array = self._values.cpu().numpy().copy()
        if layout.has_tail:
            x[layout.of_counters] = self._counts.cpu().numpy()
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
        self._start.copy_(self._tail)
        self._reset_counters()

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
        self._results[layout.weight] += weight
        for at, name in enumerate(layout.logs, layout.first_log):
            self._results[at] += weight * logs[name]
        if layout.counters:
            self._tail[layout.buffers :].copy_(self._counts)
        if layout.buffers or layout.counters:
            self._tail_results.add_(self._tail - self._start, alpha=weight)
            self._tail.copy_(self._start)
            self._reset_counters()

    def _reset_counters(self) -> None:
        if self.layout.counters:
            self._counts.copy_(self._start[self.layout.buffers :])

    def check_buffers(self) -> None:
        """Raise RunError if the first task has changed a buffer that is not part of x."""
        if self._constants is None:
            return
        before, self._constants = self._constants, None
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


def _become_views(tensors: Sequence[Any], values: Any) -> None:
    """Copy tensors into an array, one after the other, and make them views of it."""
    begin = 0
    for tensor in tensors:
        here = slice(begin, begin := begin + tensor.numel())
        values[here] = tensor.detach().reshape(-1)
        tensor.data = values[here].view(tensor.shape)


def _give_gradients(weights: Sequence[Any], results: Any) -> None:
    begin = 0
    for weight in weights:
        weight.grad = results[begin : (begin := begin + weight.numel())].view(weight.shape)


def _versions(model: Any) -> dict[str, tuple[Any, int]]:
    """Return all buffers of a model, and how often each was changed."""
    return {name: (buffer, buffer._version) for name, buffer in model.named_buffers()}


def _moving(torch: Any, model: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the buffers that tasks may change, by name."""
    known = dict(model.named_buffers())
    if unknown := set(names).difference(known):
        raise ValueError(
            f"the model has no buffer {unknown.pop()!r}; it has: {', '.join(sorted(known)) or 'none'}"
        )
    norms = {id(buffer) for buffer in running_statistics(torch, model)}
    found = {name: buffer for name, buffer in known.items() if name in names or id(buffer) in norms}
    for name, buffer in found.items():
        if buffer.dtype not in (torch.float32, torch.int64):
            raise ValueError(
                f"the model's buffer {name!r} is {buffer.dtype}, but only float32 and int64 can be averaged"
            )
    return found


def _trained(torch: Any, model: Any) -> list[Any]:
    """Return the trained weights, all float32."""
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if not weights:
        raise ValueError("the model has no weights to train; all are frozen, or there are none")
    for name, weight in weights.items():
        if weight.dtype != torch.float32:
            raise ValueError(
                f"the model's {name!r} is {weight.dtype}, but only float32 is supported; use model.float()"
            )
    return list(weights.values())
