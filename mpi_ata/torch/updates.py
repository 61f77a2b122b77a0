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
        self._build(np.zeros(1, np.float32))  # so that wrong options are rejected at once

    def __call__(self, x: Array, g: Array) -> Array:
        """Return the next point, in an array of its own."""
        import torch

        self.t += 1
        if self._optimizer is None:
            self._optimizer = self._build(x)
            self._load()
        (group,) = self._optimizer.param_groups
        (parameter,) = group["params"]
        group["lr"] = self.gamma(self.t)
        moved = x.copy()
        parameter.data, parameter.grad = torch.from_numpy(moved), torch.from_numpy(g)
        self._optimizer.step()
        parameter.grad = None
        return moved

    def _build(self, x: Array) -> Any:
        """Return the optimizer for one parameter like x."""
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
            # A step counter is a Python number in some optimizers and a 32-bit tensor in others.
            number = array.ndim == 0 and array.itemsize == 8
            self._optimizer.state[parameter][name] = array.item() if number else torch.from_numpy(array)
        self._saved = {}

    def state(self) -> State:
        """Return the number of steps and the optimizer's own state, by its names."""
        own: dict[str, Any] = self._saved
        if self._optimizer is not None:
            (parameter,) = self._optimizer.param_groups[0]["params"]
            own = self._optimizer.state[parameter]
        arrays = {name: _array(value) for name, value in own.items() if value is not None}
        return {"t": np.array(self.t)} | arrays

    def restore(self, state: State) -> None:
        """Resume from an earlier state; the optimizer gets its own at its next step."""
        self.t = int(entry(state, "t", self.t))
        self._saved = {name: np.array(array) for name, array in state.items() if name != "t"}
        self._optimizer = None


def _array(value: Any) -> npt.NDArray[Any]:
    """Return a copy of a tensor, an array or a number."""
    return np.array(value.numpy() if hasattr(value, "numpy") else value)


def _frozen(value: Any) -> Any:
    """Return a list from a job file as the tuple that PyTorch expects."""
    return tuple(value) if isinstance(value, list) else value


def _class(name: str) -> Any:
    """Return the class of torch.optim with this name."""
    try:
        from torch import optim
    except ImportError:
        raise ValueError(f"torch.{name} needs PyTorch; pip install 'mpi-ata[torch]'") from None
    found = getattr(optim, name, None)
    if not (isinstance(found, type) and issubclass(found, optim.Optimizer)) or found is optim.Optimizer:
        raise ValueError(f"torch.optim has no optimizer {name!r}")
    if found is optim.LBFGS:
        raise ValueError("torch.LBFGS needs several gradients per step, but an update gets one")
    return found
