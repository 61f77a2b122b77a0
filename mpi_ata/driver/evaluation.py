"""Evaluates the problem at the current point, off the clock."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.clusters import Cluster
from mpi_ata.errors import UsageError, diverged, in_users_code
from mpi_ata.methods import Method
from mpi_ata.problems import AnyProblem


class Evaluation(NamedTuple):
    """Loss and gap, NaN where they are not known, and what else the problem reports, by name."""

    loss: float = math.nan
    gap: float = math.nan
    metrics: Mapping[str, float] = MappingProxyType({})


NOT_EVALUATED = Evaluation()


def evaluate(
    problem: AnyProblem | None, method: Method, needs_loss: bool = False, cluster: Cluster | None = None
) -> Evaluation:
    """Evaluate the problem at the method's point, on the workers if it can be done in parts."""
    x, metrics = method.x, {}
    if sums := not getattr(method, "any_x", False):  # a point that updates move, and that may diverge
        x = x.view()
        x.flags.writeable = False
        metrics = evaluate_in_parts(problem, x, cluster)
    metrics = metrics or _call(problem, "evaluate", x) or {}
    loss = metrics.pop("loss", None)  # a problem that computes it anyway need not do so twice
    loss = _call(problem, "loss", x) if loss is None else loss
    if sums and not (np.isfinite(x).all() and (loss is None or math.isfinite(loss))):
        raise diverged(method.k, loss)
    if loss is None and needs_loss:
        way_out = "let evaluate(x) return an entry 'loss', or add loss(x)"
        raise UsageError(f"the run is to stop at a loss or gap, but the problem has no loss; {way_out}")
    if loss is None:
        return Evaluation(metrics=metrics)
    return Evaluation(loss, loss - float(getattr(problem, "minimum", math.nan)), metrics)


def evaluate_in_parts(problem: Any, x: Array, cluster: Any) -> dict[str, float]:
    """Return what workers found out in parts; nothing if the problem or the cluster does not offer that."""
    parts = getattr(problem, "evaluation_parts", 0)
    if not parts or not hasattr(cluster, "evaluate"):
        return {}
    combined: dict[str, float] = problem.combine_parts(x, cluster.evaluate(x, parts))
    return combined


def _call(problem: AnyProblem | None, name: str, x: Any) -> Any:
    """Return what a method of the problem says of x, as plain numbers; None where there is no such method."""
    if not hasattr(problem, name):
        return None
    try:
        answer = getattr(problem, name)(x)
        if name == "loss":
            return float(answer)
        return {str(key): float(value) for key, value in answer.items()}
    except Exception as error:
        raise in_users_code(f"{name}() of the problem failed", error) from None
