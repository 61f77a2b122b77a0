"""What a model and its loss make of a minibatch, and evaluations: samples may be pairs, tuples or dicts."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from mpi_ata.errors import RunError, UsageError
from mpi_ata.torch.model import GRADIENT_NORM


class TaskLoss(NamedTuple):
    """The mean loss of a minibatch, how much the minibatch counts, and what is logged beside it."""

    total: Any
    weight: float
    logs: Mapping[str, Any]


def forward(model: Any, minibatch: Any) -> tuple[Any, Any]:
    """Return the model's outputs, and what the loss compares them with.

    Of a tuple, the last entry is the target and the others are the model's arguments; a dict has named
    arguments and is the target as well, and so is a single tensor.
    """
    if isinstance(minibatch, Mapping):
        return model(**minibatch), minibatch
    if isinstance(minibatch, list | tuple) and len(minibatch) > 1:
        *inputs, targets = minibatch
        return model(*inputs), targets
    single = minibatch[0] if isinstance(minibatch, list | tuple) else minibatch
    return model(single), single


def _entries(value: Any) -> Mapping[str, Any]:
    """Return what a loss function returned, a tensor or a dict, as a dict with an entry "loss"."""
    return value if isinstance(value, Mapping) else {"loss": value}


def task_loss(value: Any, logs: tuple[str, ...], has_tail: bool) -> TaskLoss:
    """Return the parts of what a loss function returned.

    An entry "weight" says over how many things, such as tokens, the loss is a mean.
    """
    entries = _entries(value)
    if missing := {"loss", *logs}.difference(entries, [GRADIENT_NORM]):
        raise RunError(
            f"the loss has no entry {missing.pop()!r}; it has: {', '.join(entries)}; return a dict with "
            "'loss' and everything that logs= names"
        )
    weight = float(entries.get("weight", 1.0))
    if weight != 1 and not has_tail:
        raise RunError("a loss with an entry 'weight' needs logs=['loss'], with which weights are sent")
    if not weight >= 0:
        raise RunError(f"the weight of a batch is {weight}, but it must be at least 0")
    return TaskLoss(entries["loss"], weight, {name: entries.get(name, 0.0) for name in logs})


Metrics = Mapping[str, Callable[[Any, Any], Any]]
UNNAMED = "test"  # the dataset of evaluations, where there is only one


class Evaluations:
    """Datasets by name, and the metrics that are evaluated on them, `size` samples at a time.

    The parts of all datasets are numbered one after the other, the first dataset from 0 on.
    """

    def __init__(self, sets: Mapping[str, Any], metrics: Metrics, size: int) -> None:
        if size < 1:
            raise UsageError(f"evaluation_batch={size} must be at least 1")
        self.sets, self.metrics, self.size = sets, metrics, size
        ends = accumulate((-(-len(dataset) // size) for dataset in sets.values()), initial=0)
        self.parts = {name: range(*both) for name, both in zip(sets, pairwise(ends), strict=True)}
        self.default = next(iter(sets))  # the dataset that is evaluated where none is named

    def locate(self, part: int) -> tuple[int, int]:
        """Return which dataset a part belongs to, as its position, and the number of the part in there."""
        found = enumerate(self.parts.values())
        return next((position, part - parts.start) for position, parts in found if part in parts)

    def name_of(self, data: Any) -> str | None:
        """Return the name of a dataset, the first one for None; None if it was not there before the run."""
        if data is None or isinstance(data, str):
            return _checked_name("dataset", "test", data or self.default, self.sets)
        return next((name for name, dataset in self.sets.items() if dataset is data), None)

    def metric_name(self, metric: Any) -> str | None:
        """Return the name of a metric; None if it was not there before the run."""
        if isinstance(metric, str):
            return _checked_name("metric", "metrics", metric, self.metrics)
        return next((name for name, known in self.metrics.items() if known == metric), None)


def _checked_name(what: str, argument: str, name: str, known: Mapping[str, Any]) -> str:
    if name not in known:
        raise UsageError(f"there is no {what} {name!r}; {argument}= names: {', '.join(known)}")
    return name


def sums(metrics: Metrics, size: int, outputs: Any, targets: Any) -> list[float]:
    """Return the sums of metrics over a minibatch of this size, each with its weight."""
    found: list[float] = []
    for function in metrics.values():
        entries = _entries(function(outputs, targets))
        weight = float(entries.get("weight", size))
        found += [float(entries["loss"]) * weight, weight]
    return found


def means(metrics: Metrics, numbers: Sequence[float]) -> dict[str, float]:
    """Return the means of metrics over all parts, from their sums."""
    totals = np.reshape(numbers, (-1, len(metrics), 2)).sum(axis=0)
    return dict(zip(metrics, (totals[:, 0] / totals[:, 1]).tolist(), strict=True))
