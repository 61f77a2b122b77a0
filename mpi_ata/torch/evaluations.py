"""Evaluations in parts: which datasets there are for them, and what their parts add up to."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from mpi_ata.errors import UsageError
from mpi_ata.torch.losses import weighted

Metrics = Mapping[str, Callable[[Any, Any], Any]]
UNNAMED = "test"  # the dataset of evaluations, where there is only one


class Evaluations:
    """Datasets by name, and the metrics that are evaluated on them, `size` samples at a time.

    The parts of all datasets are numbered one after the other, the first dataset from 0 on.
    """

    def __init__(self, sets: Mapping[str, Any], metrics: Metrics, size: int) -> None:
        if size < 1:
            raise ValueError(f"evaluation_batch={size} must be at least 1")
        self.sets, self.metrics, self.size = dict(sets), metrics, size
        ends = accumulate((-(-len(dataset) // size) for dataset in self.sets.values()), initial=0)
        self._parts = {name: range(*both) for name, both in zip(self.sets, pairwise(ends), strict=True)}

    @property
    def default(self) -> str:
        """Return the dataset that is evaluated where none is named."""
        return next(iter(self.sets))

    def parts(self, name: str) -> range:
        """Return the numbers of the parts of a dataset."""
        return self._parts[name]

    def place(self, part: int) -> tuple[int, int]:
        """Return which dataset a part belongs to, as its position, and the number of the part in there."""
        for position, parts in enumerate(self._parts.values()):
            if part in parts:
                return position, part - parts.start
        raise UsageError(f"there is no part {part} of an evaluation")

    def name_of(self, data: Any) -> str | None:
        """Return the name of a dataset, the first one for None; None if it was not there before the run."""
        if data is None or isinstance(data, str):
            return self._named("dataset", "test", data or self.default, self.sets)
        return next((name for name, dataset in self.sets.items() if dataset is data), None)

    def metric_name(self, metric: Any) -> str | None:
        """Return the name of a metric; None if it was not there before the run."""
        if isinstance(metric, str):
            return self._named("metric", "metrics", metric, self.metrics)
        return next((name for name, known in self.metrics.items() if known == metric), None)

    def _named(self, what: str, argument: str, name: str, known: Mapping[str, Any]) -> str:
        if name not in known:
            raise UsageError(f"there is no {what} {name!r}; {argument}= names: {', '.join(known)}")
        return name


def sums(metrics: Metrics, size: int, outputs: Any, targets: Any) -> list[float]:
    """Return the sums of metrics over a batch of this size, each with its weight."""
    means = [function(outputs, targets) for function in metrics.values()]
    return [number for mean in means for number in weighted(mean, size)]


def means(metrics: Metrics, numbers: Sequence[float]) -> dict[str, float]:
    """Return the means of metrics over all parts, from their sums."""
    totals = np.reshape(numbers, (-1, len(metrics), 2)).sum(axis=0)
    return dict(zip(metrics, (totals[:, 0] / totals[:, 1]).tolist(), strict=True))
