"""The optimizers of PyTorch as updates, what they remember as arrays, and updates for points of models."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mpi_ata.arrays import Array, State, entry
from mpi_ata.errors import RunError, UsageError, describe_error
from mpi_ata.torch.devices import check_at_least_1, import_torch, on_device
from mpi_ata.torch.model import (
    GRADIENT_NORM,
    Layout,
    join_digits,
    split_integers,
    trained_parameters,
    views_like,
)
from mpi_ata.updates import GradientUpdate, Update

if TYPE_CHECKING:
    import torch

REFUSED = {
    "LBFGS": "needs several gradients per step, but an update gets one",
    "SparseAdam": "needs sparse gradients, but those of tasks are dense; use torch.Adam",
}

BY_MODEL = "lambda model: torch.optim.SGD(model.parameters(), lr=0.1)"
BY_OPTIMIZER = "lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 30)"


class TorchUpdate:
    """One step of an optimizer of PyTorch per update.

    `optimizer` is built from the parameters of the model, with groups if you like: the optimizer itself, or
    a function that returns it for a model.  `scheduler` is any of torch.optim.lr_scheduler, or a function
    that returns one for the optimizer; it makes a step after every `scheduler_every` updates, or, if it is
    ReduceLROnPlateau, whenever `evaluated` is called.  Gradients whose norm is above `clip` are scaled down
    to it.  With `ema`, a mean of the weights is kept that forgets by this factor per update: see `averaged`.
    In a run, the attributes `optimizer` and `scheduler` are the objects themselves, at their latest step.
    """

    def __init__(
        self,
        optimizer: "torch.optim.Optimizer | Callable[[torch.nn.Module], torch.optim.Optimizer]",
        scheduler: Any = None,
        scheduler_every: int = 1,
        clip: float | None = None,
        ema: float | None = None,
    ) -> None:
        check_at_least_1(scheduler_every=scheduler_every)
        if clip is not None and not clip > 0:
            raise UsageError(f"{clip=} must be above 0: the largest norm of a gradient")
        if ema is not None and not 0 < ema < 1:
            raise UsageError(f"{ema=} must be above 0 and below 1: how much of the mean an update keeps")
        self._given, self._given_scheduler, self._every = optimizer, scheduler, scheduler_every
        self._clip, self._decay = clip, ema
        self.t = 0  # steps done
        self.optimizer: Any = None  # until there is a model
        self.scheduler: Any = None
        self._parameters: list[Any] = []  # in the order of x
        self._used: set[Any] = set()  # parameters that have had a gradient
        self._saved: State = {}  # what restore() got, until there is an optimizer
        self._mean: Array | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "TorchUpdate":
        """Return a copy that has made no step; an optimizer that was passed in stays that of its model."""
        if self.optimizer is not None:
            raise UsageError(f"{type(self).__name__} is in use by another run; build a new one for each run")
        return copy.copy(self)

    def bind(self, model: "torch.nn.Module") -> None:
        """Build the optimizer for a model, whose trained weights are x, in their order."""
        optimizer = self._build(model)
        _check_class(type(optimizer))
        self._adopt(optimizer, model)
        scheduler = self._given_scheduler
        if callable(scheduler):
            scheduler = _call(scheduler, optimizer, "scheduler(optimizer)", BY_OPTIMIZER)
        self.scheduler = scheduler
        if self._saved:
            self._load()

    def _build(self, model: "torch.nn.Module") -> Any:
        if isinstance(self._given, import_torch().optim.Optimizer):
            return self._given
        return _call(self._given, model, "optimizer(model)", BY_MODEL)

    def _adopt(self, optimizer: Any, model: "torch.nn.Module") -> None:
        """Let an optimizer work on parameters of the update's own: those of the model stay where they are."""
        torch = import_torch()
        known, trained = set(model.parameters()), trained_parameters(model)
        twins = {p: torch.nn.Parameter(torch.empty(p.shape, dtype=p.dtype)) for p in trained}
        for group in optimizer.param_groups:
            if not set(group["params"]) <= known:
                raise UsageError(
                    f"{type(optimizer).__name__} has parameters that are not those of the model; "
                    "build it from the parameters of the model that is trained"
                )
            group["params"] = [twins[p] for p in group["params"] if p in twins]
            _use_fused(group)
        for p, state in [(p, optimizer.state.pop(p)) for p in list(optimizer.state)]:
            if p in twins:  # it was not frozen since the optimizer's last step
                optimizer.state[twins[p]] = on_device(torch.device("cpu"), state)
        self.optimizer, self._parameters = optimizer, list(twins.values())

    def __call__(self, x: Array, g: Array) -> Array:
        """Return the next point, in an array of its own."""
        moved = x.copy()
        self.move(moved, g)
        return moved

    def move(self, x: Array, g: Array) -> None:
        """Move x in place."""
        torch = import_torch()
        if self.optimizer is None:
            self._bind_to_array(x)
        self.t += 1
        both = (views_like(self._parameters, torch.from_numpy(values.reshape(-1))) for values in (x, g))
        for p, values, slopes in zip(self._parameters, *both, strict=True):
            if p not in self._used and slopes.any():
                self._used.add(p)
            p.data, p.grad = values, slopes if p in self._used else None  # else it would decay
        if self._decay is not None and self._mean is None:
            self._mean = x.copy()
        if self._clip is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, self._clip)
        self._step()
        for p in self._parameters:
            p.grad = None
        if self._decay is not None and self._mean is not None:
            torch.from_numpy(self._mean).lerp_(torch.from_numpy(x), 1 - self._decay)

    def _bind_to_array(self, x: Array) -> None:
        raise UsageError(
            f"{type(self).__name__} needs a model: use it with a TorchProblem, as problem.bind(update) in a "
            "loop of your own"
        )

    def _step(self) -> None:
        self.optimizer.step()
        if self.scheduler is not None and not self._on_plateau() and self.t % self._every == 0:
            self.scheduler.step()

    def _on_plateau(self) -> bool:
        return isinstance(self.scheduler, import_torch().optim.lr_scheduler.ReduceLROnPlateau)

    def evaluated(self, value: float) -> None:
        """Let ReduceLROnPlateau, if that is the scheduler, see the value of an evaluation."""
        if self._on_plateau():
            self.scheduler.step(value)

    def averaged(self, x: Array) -> Array:
        """Return a copy of x in which the weights are their running mean, where `ema` asks for one."""
        found = x.copy()
        if self._mean is not None:
            found[: self._mean.size] = self._mean
        return found

    def state(self) -> State:
        """Return the number of steps, and what optimizer, groups and scheduler remember, by its names."""
        found = {"t": np.array(self.t)} | ({} if self._mean is None else {"ema": self._mean.copy()})
        if self.optimizer is None:
            return found | {name: array.copy() for name, array in self._saved.items()}
        found |= pack_optimizer(self.optimizer, self._parameters)
        found["used"] = np.array([p in self._used for p in self._parameters])
        for name, value in self._settings().items():
            found |= _pack_nested(name, value)
        return found

    def _settings(self) -> dict[str, Any]:
        """Return what may change from step to step: the numbers of all groups, and of the scheduler."""
        found = {} if self.scheduler is None else {"scheduler": self.scheduler.state_dict()}
        for i, group in enumerate(self.optimizer.param_groups):
            others = {key: value for key, value in group.items() if key != "params"}
            found[f"group{i}"] = {key: v for key, v in others.items() if not isinstance(v, bool)}
        return found

    def restore(self, state: State) -> None:
        """Resume from an earlier state; an optimizer that is still to be built gets its part then."""
        self.t = int(entry(state, "t", self.t))
        self._saved = {name: np.array(array) for name, array in state.items() if name != "t"}
        self._mean = self._saved.pop("ema", None)
        if self.optimizer is not None:
            self._load()

    def _load(self) -> None:
        """Give what was saved to the optimizer and its scheduler."""
        saved, self._saved = self._saved, {}
        used = saved.pop("used", np.ones(len(self._parameters)))  # older runs do not know
        self._used = {p for p, was in zip(self._parameters, used.tolist(), strict=True) if was}
        packed = {name: saved.pop(name) for name in list(saved) if name.startswith(("group", "scheduler."))}
        unpack_optimizer(self.optimizer, self._parameters, saved)
        settings = {name: _unpack_nested(name, live, packed) for name, live in self._settings().items()}
        for i, group in enumerate(self.optimizer.param_groups):
            group.update(settings.get(f"group{i}", {}))
        if self.scheduler is not None:
            self.scheduler.load_state_dict(settings["scheduler"])


def _call(function: Callable[[Any], Any], given: Any, name: str, example: str) -> Any:
    """Return what a function of the user's builds; report in one sentence where it fails."""
    try:
        return function(given)
    except Exception as error:
        raise UsageError(f"{name} failed: {describe_error(error)}; an example is {example}") from None


def _check_class(cls: type) -> None:
    """Reject optimizers that need other gradients than those of tasks."""
    if cls.__name__ in REFUSED:
        raise UsageError(f"torch.{cls.__name__} {REFUSED[cls.__name__]}")


def _use_fused(group: dict[str, Any]) -> None:
    """Let one kernel do the whole step where PyTorch has it and the user has not chosen another way."""
    if not hasattr(import_torch(), "_fused_adagrad_"):  # came together with the fused kernels for CPUs
        return
    unset = all(group.get(key) is None for key in ("fused", "foreach"))
    if "fused" in group and unset and not (group.get("differentiable") or group.get("capturable")):
        group["fused"] = True


class NamedTorchUpdate(TorchUpdate):
    """One step of an optimizer of torch.optim; its learning rate is the step size, its options are keys."""

    def __init__(
        self,
        optimizer: str,
        step_size: float,
        schedule: str = "constant",
        warmup: int = 0,
        period: int = 0,
        final_step_size: float = 0.0,
        clip: float | None = None,
        ema: float | None = None,
        **options: Any,
    ) -> None:
        self._sizes = GradientUpdate(step_size, schedule, warmup, period, final_step_size)
        self._class = _named_class(optimizer)
        # PyTorch expects tuples where a job file has lists.
        self._options = {key: tuple(v) if isinstance(v, list) else v for key, v in options.items()}
        super().__init__(self._build, clip=clip, ema=ema)
        torch = import_torch()
        # Rejects wrong options at once; one weight is a matrix, since some optimizers take no vectors.
        self._build(torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(1, 1))]))

    def _build(self, model: "torch.nn.Module") -> Any:
        try:
            return self._class(trained_parameters(model), lr=self._sizes.step_size, **self._options)
        except (TypeError, ValueError) as error:
            raise UsageError(f"torch.optim.{self._class.__name__}: {error}") from None

    def _bind_to_array(self, x: Array) -> None:
        """Build the optimizer for one parameter like x."""
        torch = import_torch()
        self.bind(torch.nn.ParameterList([torch.nn.Parameter(torch.from_numpy(x.copy()))]))

    def _step(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self._sizes.gamma(self.t)
        self.optimizer.step()

    def _settings(self) -> dict[str, Any]:
        return {}  # they are those of the job


def _named_class(name: str) -> Any:
    """Return the class of torch.optim with this name."""
    optim = import_torch().optim
    found = vars(optim).get(name)
    if not (isinstance(found, type) and issubclass(found, optim.Optimizer)) or found is optim.Optimizer:
        raise UsageError(f"torch.optim has no optimizer {name!r}")
    _check_class(found)
    return found


def pack_optimizer(optimizer: Any, parameters: Sequence[Any]) -> State:
    """Return what an optimizer remembers of its parameters.

    What is like the parameters becomes one array, in their order; a number that is the same for all of them
    is saved once, and anything else as "name.i" for parameter i.
    """
    packed: State = {}
    for name in {key: None for state in optimizer.state.values() for key in state}:
        held = {i: optimizer.state[p].get(name) for i, p in enumerate(parameters) if p in optimizer.state}
        arrays = {i: _array(name, value) for i, value in held.items() if value is not None}
        values, kinds = list(arrays.values()), {array.dtype for array in arrays.values()}
        if len(kinds) == 1 and [value.shape for value in values] == [tuple(p.shape) for p in parameters]:
            packed[name] = np.concatenate([value.reshape(-1) for value in values])
        elif len(values) == len(parameters) and _all_the_same(values):
            packed[name] = values[0]
        else:
            packed |= {f"{name}.{i}": value for i, value in arrays.items()}
    return packed


def _all_the_same(values: list[npt.NDArray[Any]]) -> bool:
    return values[0].ndim == 0 and len({(value.dtype, value.tobytes()) for value in values}) == 1


def _array(name: str, value: Any) -> npt.NDArray[Any]:
    """Return a copy of a tensor or a number."""
    is_tensor = isinstance(value, import_torch().Tensor)
    array = np.array(value.detach().cpu().numpy() if is_tensor else value)
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
    if array.ndim == 0 and array.itemsize == 8:
        return array.item()
    return import_torch().from_numpy(np.array(array))


def _pack_nested(name: str, value: Any) -> State:
    """Return all numbers in nested dicts and lists by their dotted names; the rest is left out."""
    if isinstance(value, int | float) or _is_number_tensor(value):
        return {name: _array(name, value)}
    items: Any = enumerate(value) if isinstance(value, list | tuple) else ()
    items = value.items() if isinstance(value, Mapping) else items
    return {key: array for at, inner in items for key, array in _pack_nested(f"{name}.{at}", inner).items()}


def _unpack_nested(name: str, live: Any, packed: State) -> Any:
    """Return a copy of `live` with the numbers that `_pack_nested` returned."""
    if isinstance(live, Mapping):
        found: Any = copy.copy(live)  # a Counter, say, stays one
        for key, value in live.items():
            found[key] = _unpack_nested(f"{name}.{key}", value, packed)
        return found
    if isinstance(live, list | tuple):
        return type(live)(_unpack_nested(f"{name}.{i}", value, packed) for i, value in enumerate(live))
    saved = packed.get(name)
    if saved is None:
        return live
    return live.new_tensor(saved.item()) if _is_number_tensor(live) else saved.item()


def _is_number_tensor(value: Any) -> bool:
    """Return whether a value is a tensor that holds one number, as a learning rate may be."""
    return isinstance(value, import_torch().Tensor) and value.ndim == 0


# The loss scale, as in torch.amp.GradScaler:
GROWTH_UPDATES = 2000  # without overflow, after which it grows
BACKOFF, GROWTH = 0.5, 2.0

NOTE = "note."  # what the names of notes begin with in a saved state


def _saved(name: str, value: Any) -> npt.NDArray[Any]:
    """Return a note as an array."""
    array = np.array(value)
    if array.dtype.kind not in "fiub" or "/" in name:
        rule = "use numbers and arrays, and names without '/'"
        raise UsageError(f"state[{name!r}] = {value!r} cannot be saved; {rule}")
    return array


class TailUpdate:
    """Moves the weights by another update, by the mean of gradients weighted as their tasks are.

    Buffers change by the weighted mean of how tasks changed them, integers rounded; logs are weighted means.
    Where a task has overflowed in half precision, the weights stay as they are and the loss scale is halved.
    """

    def __init__(
        self, inner: Update, layout: Layout, model: npt.NDArray[np.bytes_], constants: Array
    ) -> None:
        self.inner, self.layout = inner, layout
        self._model = model  # which part of x is which tensor, for who reads the run file
        self._constants = constants  # a sample of what is not in x
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
        overflow = layout.scaled and g.item(layout.scale + 1) > 0
        self._move_tail(x, g, overflow)
        moved = x.copy() if overflow else self._move_weights(x, g)
        moved[layout.weights :] = g[layout.weights :]
        return moved

    def _move_tail(self, x: Array, g: Array, overflow: bool) -> None:
        """Turn what follows the gradient in g into what follows the weights in the next point."""
        layout = self.layout
        g[layout.of_buffers] += x[layout.of_buffers]
        before, changes = (import_torch().tensor(values[layout.of_digits]) for values in (x, g))
        g[layout.of_digits] = split_integers(join_digits(before) + join_digits(changes)).numpy()
        g[layout.weight] = 1.0
        if GRADIENT_NORM in layout.logs:
            place = layout.first_log + layout.logs.index(GRADIENT_NORM)
            g[place] = np.linalg.norm(g[: layout.weights])
        if layout.scaled:
            g[layout.scale] = self._next_scale(x.item(layout.scale), overflow)
            g[layout.scale + 1] = 0.0

    def _next_scale(self, scale: float, overflow: bool) -> float:
        self._fine = 0 if overflow else self._fine + 1
        if overflow:
            return scale * BACKOFF
        if self._fine < GROWTH_UPDATES:
            return scale
        self._fine = 0
        return scale * GROWTH

    def _move_weights(self, x: Array, g: Array) -> Array:
        """Return an array like x whose first part is the next weights."""
        weights, inner = self.layout.weights, self.inner
        if isinstance(inner, TorchUpdate):  # in place, which saves a pass through memory
            moved = x.copy()
            inner.move(moved[:weights], g[:weights])
            return moved
        found = inner(x[:weights], g[:weights])
        if not np.may_share_memory(found, g):
            g[:weights] = found
        return g

    def state(self) -> State:
        """Return the state of the inner update, how long the loss scale has been fine, and the notes."""
        own: State = {"model": self._model, "constants": self._constants}
        if self.layout.scaled:
            own["loss_scale_age"] = np.array(self._fine)
        notes = {f"{NOTE}{name}": _saved(name, value) for name, value in self.notes.items()}
        return self.inner.state() | own | notes

    def restore(self, state: State) -> None:
        """Resume from an earlier state."""
        if self.layout.scaled:
            self._fine = int(entry(state, "loss_scale_age", self._fine))
        self._check_constants(state.get("constants", self._constants))  # older runs have none
        self.notes.clear()
        known = "model", "constants", "loss_scale_age"
        rest = {name: array for name, array in state.items() if name not in known}
        for name in [name for name in rest if name.startswith(NOTE)]:
            array = rest.pop(name)
            self.notes[name.removeprefix(NOTE)] = np.array(array) if array.ndim else array.item()
        self.inner.restore(rest)

    def _check_constants(self, saved: Array) -> None:
        """Reject other frozen weights than those of the run; another processor may have rounded them."""
        own = self._constants
        size = np.abs(own[np.isfinite(own)]).max(initial=0.0)
        if saved.shape != own.shape or not np.allclose(saved, own, 1e-3, 1e-6 * size, equal_nan=True):
            raise ValueError(
                "the model has other frozen weights or constant buffers than in that run; build it from the "
                "same seed or file, as after torch.manual_seed(0)"
            )
