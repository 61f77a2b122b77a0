"""The optimizers of PyTorch as updates: update = "torch.AdamW" names a class of torch.optim."""

from typing import Any

import numpy as np
import numpy.typing as npt

from mpi_ata.arrays import Array, State, entry
from mpi_ata.updates.gradient import GradientUpdate


class TorchUpdate(GradientUpdate):
    """One step of an optimizer of torch.optim; its learning rate is the step size, its options are keys."""

    def __init__(
        self,
        optimizer: str,
        step_size: float,
        schedule: str = "constant",
        warmup: int = 0,
        period: int = 0,
        final_step_size: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(step_size, schedule, warmup, period, final_step_size)
        self._class = _class(optimizer)
        self._options = {key: _frozen(value) for key, value in options.items()}
        self._saved: State = {}
        self._optimizer: Any = None
        self._made(np.zeros(1, np.float32))  # so that wrong options are refused at once

    def __call__(self, x: Array, g: Array) -> Array:
        """One step, made in an array of its own."""
        import torch

        self.t += 1
        if self._optimizer is None:
            self._optimizer = self._made(x)
            self._load()
        (group,) = self._optimizer.param_groups
        (parameter,) = group["params"]
        group["lr"] = self.gamma(self.t)
        moved = x.copy()
        parameter.data, parameter.grad = torch.from_numpy(moved), torch.from_numpy(g)
        self._optimizer.step()
        parameter.grad = None
        return moved

    def _made(self, x: Array) -> Any:
        """The optimizer of one parameter like x."""
        import torch

        parameter = torch.nn.Parameter(torch.from_numpy(x.copy()))
        try:
            return self._class([parameter], lr=self.step_size, **self._options)
        except TypeError as error:
            raise ValueError(f"torch.optim.{self._class.__name__}: {error}") from None

    def _load(self) -> None:
        import torch

        (parameter,) = self._optimizer.param_groups[0]["params"]
        for name, array in self._saved.items():
            # What is counted is a number of Python in some optimizers, and a tensor of 32 bits in others.
            number = array.ndim == 0 and array.itemsize == 8
            self._optimizer.state[parameter][name] = array.item() if number else torch.from_numpy(array)
        self._saved = {}

    def state(self) -> State:
        """The number of steps, and what the optimizer keeps, by its names."""
        kept: dict[str, Any] = self._saved
        if self._optimizer is not None:
            (parameter,) = self._optimizer.param_groups[0]["params"]
            kept = self._optimizer.state[parameter]
        arrays = {name: _array(value) for name, value in kept.items() if value is not None}
        return {"t": np.array(self.t)} | arrays

    def restore(self, state: State) -> None:
        """Go on from an earlier state; what the optimizer kept is handed to it at its next step."""
        self.t = int(entry(state, "t", self.t))
        self._saved = {name: np.array(array) for name, array in state.items() if name != "t"}
        self._optimizer = None


def _array(value: Any) -> npt.NDArray[Any]:
    """A copy of a tensor, an array or a number."""
    return np.array(value.numpy() if hasattr(value, "numpy") else value)


def _frozen(value: Any) -> Any:
    """A list of a job file as the tuple that PyTorch asks for."""
    return tuple(value) if isinstance(value, list) else value


def _class(name: str) -> Any:
    """The class of torch.optim of this name."""
    try:
        from torch import optim
    except ImportError:
        raise ValueError(f"torch.{name} needs PyTorch; pip install 'mpi-ata[torch]'") from None
    found = getattr(optim, name, None)
    if not (isinstance(found, type) and issubclass(found, optim.Optimizer)) or found is optim.Optimizer:
        raise ValueError(f"torch.optim has no optimizer {name!r}")
    if found is optim.LBFGS:
        raise ValueError("torch.LBFGS asks for several gradients a step, but an update gets one")
    return found
