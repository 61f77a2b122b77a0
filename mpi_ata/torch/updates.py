"""The optimizers of PyTorch as updates: each works on the tensors of the model, not on one long vector."""

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mpi_ata.arrays import Array, State, entry
from mpi_ata.errors import UsageError, describe_error
from mpi_ata.torch.optimizer_state import (
    pack_groups,
    pack_nested,
    pack_optimizer,
    unpack_groups,
    unpack_nested,
    unpack_optimizer,
)

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
    """

    def __init__(
        self,
        optimizer: "torch.optim.Optimizer | Callable[[torch.nn.Module], torch.optim.Optimizer]",
        scheduler: Any = None,
        scheduler_every: int = 1,
        clip: float | None = None,
        ema: float | None = None,
    ) -> None:
        if scheduler_every < 1:
            raise ValueError(f"{scheduler_every=} must be at least 1 update")
        if clip is not None and not clip > 0:
            raise ValueError(f"{clip=} must be above 0: the largest norm of a gradient")
        if ema is not None and not 0 < ema < 1:
            raise ValueError(f"{ema=} must be above 0 and below 1: how much of the mean an update keeps")
        self._given, self._given_scheduler, self._every = optimizer, scheduler, scheduler_every
        self._clip, self._decay = clip, ema
        self.t = 0  # steps done
        self._optimizer: Any = None
        self._scheduler: Any = None
        self._parameters: list[Any] = []  # in the order of x
        self._saved: State = {}
        self._mean: Array | None = None

    @property
    def optimizer(self) -> Any:
        """The optimizer, at its latest step; None before there is a model."""
        self._load()
        return self._optimizer

    @property
    def scheduler(self) -> Any:
        """The scheduler of the optimizer, at its latest step; None if there is none."""
        self._load()
        return self._scheduler

    def __deepcopy__(self, memo: dict[int, Any]) -> "TorchUpdate":
        """Return a copy that has made no step; an optimizer that was passed in stays that of its model."""
        if self._optimizer is not None:
            raise UsageError(f"{type(self).__name__} is in use by another run; build a new one for each run")
        return copy.copy(self)

    def bind(self, model: "torch.nn.Module") -> None:
        """Build the optimizer for a model, whose trained weights are x, in their order."""
        import torch

        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer: Any = self._given
        if not isinstance(optimizer, torch.optim.Optimizer):
            optimizer = _built(optimizer, model, "optimizer(model)", BY_MODEL)
        check_class(type(optimizer))
        self._adopt(optimizer, trained, list(model.parameters()))
        scheduler = self._given_scheduler
        if _is_factory(scheduler):
            scheduler = _built(scheduler, optimizer, "scheduler(optimizer)", BY_OPTIMIZER)
        self._scheduler = scheduler

    def _adopt(self, optimizer: Any, trained: Sequence[Any], known: Sequence[Any]) -> None:
        """Let an optimizer work on parameters of the update's own: those of the model stay where they are."""
        import torch

        twins = {p: torch.nn.Parameter(torch.empty(p.shape, dtype=p.dtype)) for p in trained}
        for group in optimizer.param_groups:
            if not set(group["params"]) <= set(known):
                raise UsageError(
                    f"{type(optimizer).__name__} has parameters that are not those of the model; "
                    "build it from the parameters of the model that is trained"
                )
            group["params"] = [twins[p] for p in group["params"] if p in twins]
            _use_fused(group)
        for p, state in [(p, optimizer.state.pop(p)) for p in list(optimizer.state)]:
            if p in twins:  # it was not frozen since the optimizer's last step
                optimizer.state[twins[p]] = {key: _on_cpu(value) for key, value in state.items()}
        self._optimizer, self._parameters = optimizer, list(twins.values())

    def __call__(self, x: Array, g: Array) -> Array:
        """Return the next point, in an array of its own."""
        moved = x.copy()
        self.move(moved, g)
        return moved

    def move(self, x: Array, g: Array) -> None:
        """Move x in place."""
        import torch

        if self._optimizer is None:
            self._bind_to_array(x)
        self._load()
        self.t += 1
        for p, values, slopes in zip(self._parameters, self._views(x), self._views(g), strict=True):
            p.data, p.grad = values, slopes
        if self._clip is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, self._clip)
        self._step()
        for p in self._parameters:
            p.grad = None
        self._average(x)

    def _bind_to_array(self, x: Array) -> None:
        raise UsageError(
            f"{type(self).__name__} needs a model: use it with a TorchProblem, as problem.bind(update) in a "
            "loop of your own"
        )

    def _views(self, values: Array) -> "Sequence[torch.Tensor]":
        """Return the parts of an array like x that belong to the parameters."""
        import torch

        parts = torch.from_numpy(values.reshape(-1)).split([p.numel() for p in self._parameters])
        return [part.view(p.shape) for part, p in zip(parts, self._parameters, strict=True)]

    def _step(self) -> None:
        self._optimizer.step()
        if self._scheduler is not None and not self._on_plateau() and self.t % self._every == 0:
            self._scheduler.step()

    def _on_plateau(self) -> bool:
        from torch.optim.lr_scheduler import ReduceLROnPlateau

        return isinstance(self._scheduler, ReduceLROnPlateau)

    def evaluated(self, value: float) -> bool:
        """Let ReduceLROnPlateau see the value of an evaluation; return whether that is the scheduler."""
        if found := self._on_plateau():
            self.scheduler.step(value)
        return found

    def _average(self, x: Array) -> None:
        import torch

        if self._decay is None:
            return
        if self._mean is None:
            self._mean = x.copy()
        torch.from_numpy(self._mean).lerp_(torch.from_numpy(x), 1 - self._decay)

    def averaged(self, x: Array) -> Array:
        """Return a copy of x in which the weights are their running mean, where `ema` asks for one."""
        found, mean = x.copy(), self._saved.get("ema") if self._saved else self._mean
        if mean is not None:
            found[: mean.size] = mean
        return found

    def state(self) -> State:
        """Return the number of steps, and what optimizer, groups and scheduler remember, by its names."""
        if self._saved or self._optimizer is None:
            return {"t": np.array(self.t)} | {name: array.copy() for name, array in self._saved.items()}
        mean = {} if self._mean is None else {"ema": self._mean.copy()}
        own = pack_optimizer(self._optimizer, self._parameters)
        return {"t": np.array(self.t)} | own | self._settings() | mean

    def _settings(self) -> State:
        schedule = {} if self._scheduler is None else self._scheduler.state_dict()
        return pack_groups(self._optimizer) | pack_nested("scheduler", schedule)

    def restore(self, state: State) -> None:
        """Resume from an earlier state; the optimizer gets its part when it is next used."""
        self.t = int(entry(state, "t", self.t))
        self._saved = {name: np.array(array) for name, array in state.items() if name != "t"}

    def _load(self) -> None:
        """Give what was saved to the optimizer and its scheduler."""
        if not self._saved or self._optimizer is None:
            return
        saved, self._saved = self._saved, {}
        self._mean = saved.pop("ema", None)
        settings = {name: saved.pop(name) for name in list(saved) if name.startswith(("group", "scheduler."))}
        unpack_optimizer(self._optimizer, self._parameters, saved)
        unpack_groups(self._optimizer, settings)
        if self._scheduler is not None:
            live = self._scheduler.state_dict()
            self._scheduler.load_state_dict(unpack_nested("scheduler", live, settings))


def _built(function: Callable[[Any], Any], given: Any, name: str, example: str) -> Any:
    """Return what a function builds; report in one sentence where one of the user's own fails."""
    try:
        return function(given)
    except Exception as error:
        if getattr(function, "__module__", "").startswith("mpi_ata."):
            raise
        raise UsageError(f"{name} failed: {describe_error(error)}; an example is {example}") from None


def _is_factory(scheduler: Any) -> bool:
    return callable(scheduler) and not hasattr(scheduler, "state_dict")


def check_class(cls: type) -> None:
    """Reject optimizers that need other gradients than those of tasks."""
    if cls.__name__ in REFUSED:
        raise ValueError(f"torch.{cls.__name__} {REFUSED[cls.__name__]}")


def _on_cpu(value: Any) -> Any:
    return value.cpu() if hasattr(value, "cpu") else value


def _use_fused(group: dict[str, Any]) -> None:
    """Let one kernel do the whole step where PyTorch has it and the user has not chosen another way."""
    import torch

    if not hasattr(torch, "_fused_adagrad_"):  # came together with the fused kernels for CPUs
        return
    unset = all(group.get(key) is None for key in ("fused", "foreach"))
    if "fused" in group and unset and not (group.get("differentiable") or group.get("capturable")):
        group["fused"] = True
