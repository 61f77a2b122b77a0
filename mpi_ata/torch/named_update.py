"""Optimizers of PyTorch by name, for job files: update = "torch.AdamW" names a class of torch.optim."""

from collections.abc import Sequence
from typing import Any

from mpi_ata.arrays import Array, State
from mpi_ata.torch.updates import TorchUpdate, check_class
from mpi_ata.updates import GradientUpdate


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
        self._class = _class(optimizer)
        self._options = {key: _frozen(value) for key, value in options.items()}
        super().__init__(lambda model: self._built(model.parameters()), clip=clip, ema=ema)
        self._check_options()

    def _check_options(self) -> None:
        """Reject wrong options at once; one weight is a matrix, since some optimizers take no vectors."""
        import torch

        self._built([torch.nn.Parameter(torch.zeros(1, 1))])

    def _built(self, parameters: Any) -> Any:
        try:
            return self._class(_trained(parameters), lr=self._sizes.step_size, **self._options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"torch.optim.{self._class.__name__}: {error}") from None

    def _bind_to_array(self, x: Array) -> None:
        """Build the optimizer for one parameter like x."""
        import torch

        self.bind(torch.nn.ParameterList([torch.nn.Parameter(torch.from_numpy(x.copy()))]))

    def _step(self) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = self._sizes.gamma(self.t)
        self._optimizer.step()

    def _settings(self) -> State:
        return {}  # they are those of the job


def _trained(parameters: Any) -> Sequence[Any]:
    return [p for p in parameters if p.requires_grad]


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
    check_class(found)
    return found
