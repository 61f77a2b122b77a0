"""An update for points of models: the weights move as its inner update says, what follows is averaged."""

from typing import Any

import numpy as np
import numpy.typing as npt

from mpi_ata.arrays import Array, State, entry
from mpi_ata.errors import RunError, UsageError
from mpi_ata.torch.layout import GRADIENT_NORM, Layout
from mpi_ata.updates import Update

GROWTH_INTERVAL = (
    2000  # updates without overflow after which the loss scale doubles, as in torch.amp.GradScaler
)
BACKOFF, GROWTH = 0.5, 2.0
RULE = "use numbers and arrays, and names without '/'"
NOTE = "note."  # what the names of notes begin with in a saved state


def _saved(name: str, value: Any) -> npt.NDArray[Any]:
    """Return a note as an array."""
    array = np.array(value)
    if array.dtype.kind not in "fiub" or "/" in name:
        raise UsageError(f"state[{name!r}] = {value!r} cannot be saved; {RULE}")
    return array


def _restored(array: npt.NDArray[Any]) -> Any:
    return array.item() if array.ndim == 0 else np.array(array)


class TailUpdate:
    """Moves the weights by another update, by the mean of gradients weighted as their tasks are.

    Buffers and counters change by the weighted mean of how tasks changed them; logs are weighted means.
    Where a task has overflowed in half precision, the weights stay as they are and the loss scale is halved.
    """

    def __init__(self, inner: Update, layout: Layout, model: npt.NDArray[np.bytes_]) -> None:
        self.inner, self.layout = inner, layout
        self._model = model  # which part of x is which tensor, for who reads the run file
        self.notes: dict[str, Any] = {}  # numbers and arrays of the user's own, saved with the update
        self._fine = 0  # updates since the loss scale changed

    def __call__(self, x: Array, g: Array) -> Array:
        """Return the next point; g is overwritten."""
        layout = self.layout
        if not layout.has_tail:
            return self.inner(x, g)
        weight = g.item(layout.weight)
        if not weight > 0:
            raise RunError(f"the weights of the tasks have the mean {weight}, but it must be above 0")
        if weight != 1:
            g /= weight
        tail = self._tail(x, g)
        if GRADIENT_NORM in layout.logs:
            tail[layout.logs.index(GRADIENT_NORM) - len(layout.logs)] = np.linalg.norm(g[: layout.weights])
        overflow = layout.scaled and g[layout.scale + 1] > 0
        moved = x.copy() if overflow else self._moved(x, g)
        moved[layout.weights :] = tail
        return moved

    def _tail(self, x: Array, g: Array) -> Array:
        layout, begin = self.layout, self.layout.weights
        tail = g[begin:].copy()
        changed = slice(0, layout.weight - begin)
        tail[changed] += x[begin : layout.weight]
        counters = slice(layout.buffers, layout.weight - begin)
        np.round(tail[counters], out=tail[counters])
        tail[layout.weight - begin] = 1.0
        if layout.scaled:
            tail[layout.scale - begin] = self._next_scale(x.item(layout.scale), g.item(layout.scale + 1) > 0)
            tail[layout.scale + 1 - begin] = 0.0
        return tail

    def _next_scale(self, scale: float, overflow: bool) -> float:
        self._fine = 0 if overflow else self._fine + 1
        if overflow:
            return scale * BACKOFF
        if self._fine < GROWTH_INTERVAL:
            return scale
        self._fine = 0
        return scale * GROWTH

    def _moved(self, x: Array, g: Array) -> Array:
        """Return an array like x whose first part is the next weights."""
        weights, inner = self.layout.weights, self.inner
        if hasattr(inner, "move"):  # in place, which saves a pass through memory
            moved = x.copy()
            inner.move(moved[:weights], g[:weights])
            return moved
        found = inner(x[:weights], g[:weights])
        if not np.may_share_memory(found, g):
            g[:weights] = found
        return g

    def state(self) -> State:
        """Return the state of the inner update, how long the loss scale has been fine, and the notes."""
        notes = {f"{NOTE}{name}": _saved(name, value) for name, value in self.notes.items()}
        return self.steps_state() | notes

    def restore(self, state: State) -> None:
        """Resume from an earlier state."""
        notes = {name: array for name, array in state.items() if name.startswith(NOTE)}
        self.notes.clear()
        self.notes |= {name.removeprefix(NOTE): _restored(array) for name, array in notes.items()}
        self.restore_steps({name: array for name, array in state.items() if name not in notes})

    def steps_state(self) -> State:
        """Return what state() returns, without the notes."""
        own: State = {"model": self._model}
        if self.layout.scaled:
            own["loss_scale_age"] = np.array(self._fine)
        return self.inner.state() | own

    def restore_steps(self, state: State) -> None:
        """Resume from what steps_state() returned; the notes stay as they are."""
        if self.layout.scaled:
            self._fine = int(entry(state, "loss_scale_age", self._fine))
        own = {"model", "loss_scale_age"}
        self.inner.restore({name: array for name, array in state.items() if name not in own})

    def as_shared(self) -> "SharedUpdate":
        """Return this update for a point that workers move."""
        return SharedUpdate(self)

    def __getattr__(self, name: str) -> Any:
        """Return what the inner update has beside the interface, such as its optimizer."""
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


class SharedUpdate:
    """An update as the manager shares it with workers that keep the point: without the notes."""

    def __init__(self, update: TailUpdate) -> None:
        self._update = update

    def __call__(self, x: Array, g: Array) -> Array:
        """Return the next point; g is overwritten."""
        return self._update(x, g)

    def state(self) -> State:
        """Return what workers need for the next step."""
        return self._update.steps_state()

    def restore(self, state: State) -> None:
        """Take over what a worker has."""
        self._update.restore_steps(state)
