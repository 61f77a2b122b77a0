"""Evaluations that a training loop asks for: by all workers, if they have the dataset and the metric."""

import logging
import math
from typing import Any

from mpi_ata.arrays import Array
from mpi_ata.clusters import Cluster
from mpi_ata.driver.evaluation import Evaluation, evaluate_in_parts
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import diverged
from mpi_ata.methods import SGD
from mpi_ata.torch import TorchProblem
from mpi_ata.torch.evaluations import Metrics

log = logging.getLogger("mpi_ata")


class TrainerEvaluations:
    """Evaluates the model of a run, and records evaluations of its first dataset."""

    def __init__(self, problem: TorchProblem, method: SGD, cluster: Cluster, trace: Trace) -> None:
        self._problem, self._method, self._cluster, self._trace = problem, method, cluster, trace
        self._noted = False  # whether it was said that rank 0 evaluates alone

    def of(self, x: Array, data: Any, metric: Any) -> Any:
        """Return loss and metrics at x over a dataset, the first one if it is None; or one `metric` alone."""
        known = self._problem.evaluations
        name, wanted = known.name_of(data), None if metric is None else known.metric_name(metric)
        with self._trace.shares.timed("evaluation_time"):
            if name is None or (metric is not None and wanted is None):
                return self._here(x, data if name is None else known.sets[name], metric)
            parts = known.parts(name)
            found = evaluate_in_parts(self._problem, x, self._cluster, parts)
            found = found or self._problem.evaluate_parts(x, parts)
        if name == known.default:
            self._record(found)
        return found if wanted is None else found[wanted]

    def _here(self, x: Array, data: Any, metric: Any) -> Any:
        """Evaluate in this process."""
        if not self._noted and hasattr(self._cluster, "evaluate"):
            self._noted = True
            log.warning(
                "evaluate() was given a dataset or a metric that workers do not have, so rank 0 evaluates "
                "alone; pass them to Trainer as test= and metrics= to use all workers"
            )
        known = self._problem.evaluations
        metrics = known.metrics if metric is None else {"metric": _function(known.metrics, metric)}
        found = self._problem.evaluate_here(x, data, metrics)
        return found if metric is None else found["metric"]

    def _record(self, found: dict[str, float]) -> None:
        loss = found["loss"]
        if not math.isfinite(loss):
            raise diverged(self._method.k, loss)
        self._trace.record(Evaluation(loss, metrics={k: value for k, value in found.items() if k != "loss"}))
        update: Any = self._method.update
        if update.evaluated(loss):
            hand_out(self._method)


def hand_out(method: SGD) -> None:
    """Make workers that keep the point begin the next round with the point and the update of rank 0."""
    method.x = method.x


def _function(metrics: Metrics, metric: Any) -> Any:
    return metrics[metric] if isinstance(metric, str) else metric
