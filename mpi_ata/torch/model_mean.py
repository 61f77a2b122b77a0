"""The mean over ranks of a model's gradients, and of the running statistics of its normalisations."""

from collections.abc import Sequence
from typing import Any

from mpi_ata.errors import RunError
from mpi_ata.torch.devices import import_torch
from mpi_ata.torch.statistics import running_statistics
from mpi_ata.torch.tensor_buckets import TensorBuckets


class ModelMean:
    """Averages gradients and running statistics of one model; other buffers stay as they are."""

    def __init__(self, model: Any) -> None:
        found = running_statistics(import_torch(), model)
        self._model, self._parameters = model, trained(model)
        self._statistics = sorted(found, key=lambda buffer: not buffer.is_floating_point())
        counters = [buffer.float() for buffer in self._statistics if not buffer.is_floating_point()]
        floats = self._statistics[: len(self._statistics) - len(counters)]
        self._buckets = TensorBuckets([*self._parameters, *floats, *counters])

    def fits(self, model: Any, parameters: Sequence[Any]) -> bool:
        """Return whether this is the model, and whether the same parameters of it have gradients."""
        return model is self._model and [*map(id, parameters)] == [*map(id, self._parameters)]

    def start(self, weight: float, total: float) -> list[Any]:
        """Begin to average; statistics of this rank have its weight, gradients are sums that have it."""
        gradients = [parameter.grad for parameter in self._parameters]
        return self._buckets.start([*gradients, *(buffer * weight for buffer in self._statistics)], 1 / total)

    def finish(self, running: Sequence[Any], used: Sequence[bool]) -> None:
        """Take the means; parameters that no rank has used keep no gradient, as in DDP."""
        means = self._buckets.finish(running)
        for parameter, mean, anywhere in zip(self._parameters, means, used, strict=False):
            parameter.grad = mean if anywhere else None
        for buffer, mean in zip(self._statistics, means[len(self._parameters) :], strict=True):
            buffer.copy_(mean if buffer.is_floating_point() else mean.round())


def trained(model: Any) -> list[Any]:
    """Return the parameters of a model that have gradients; reject sparse ones."""
    found = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if any(parameter.grad is not None and parameter.grad.is_sparse for parameter in found):
        raise RunError("the model has sparse gradients, which are not averaged here; use sparse=False")
    return found
