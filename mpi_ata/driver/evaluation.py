"""Evaluates the problem at the current point, off the clock."""

import math
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from mpi_ata.arrays import Array, described
from mpi_ata.clusters import Cluster
from mpi_ata.errors import RunError, UsageError, diverged, in_users_code
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
    metrics = metrics or _metrics(problem, x)
    loss = metrics.pop("loss", None)  # a problem that computes it anyway need not do so twice
    loss = _loss(problem, x) if loss is None else loss
    if sums and not (np.isfinite(x).all() and (loss is None or math.isfinite(loss))):
        raise diverged(method.k, loss)
    if loss is None and needs_loss:
        way_out = "let evaluate(x) return an entry 'loss', or add loss(x)"
        raise UsageError(f"the run is to stop at a loss or gap, but the problem has no loss; {way_out}")
    if loss is None:
        return Evaluation(metrics=metrics)
    minimum = _number("minimum of the problem is", getattr(problem, "minimum", math.nan))
    return Evaluation(loss, loss - minimum, metrics)


def _loss(problem: AnyProblem | None, x: Any) -> float | None:
    """Return the loss at x; None where the problem has no loss()."""
    if not hasattr(problem, "loss"):
        return None
    return _number("loss(x) of the problem returned", _call(problem, "loss", x))


def _metrics(problem: AnyProblem | None, x: Any) -> dict[str, float]:
    """Return what evaluate() of the problem says of x, as plain numbers; nothing where there is none."""
    if not hasattr(problem, "evaluate"):
        return {}
    return _named_numbers("evaluate(x)", _call(problem, "evaluate", x))


def _named_numbers(function: str, answer: Any) -> dict[str, float]:
    """Return what a function of the problem returned as plain numbers by name."""
    if not isinstance(answer, Mapping):
        rule = 'it must return a dict of numbers by name, as {"accuracy": 0.9}'
        raise RunError(f"{function} of the problem returned {described(answer)}; {rule}")
    return {
        str(name): _number(f"the entry {name!r} of what {function} returned is", value)
        for name, value in answer.items()
    }


def evaluate_in_parts(problem: Any, x: Array, cluster: Any, parts: range | None = None) -> dict[str, float]:
    """Return what workers found out in parts, those of the usual evaluation unless others are given.

    Nothing if the problem or the cluster does not offer that.
    """
    parts = range(getattr(problem, "evaluation_parts", 0)) if parts is None else parts
    if not parts or not hasattr(cluster, "evaluate"):
        return {}
    numbers = cluster.evaluate(x, parts)
    return _named_numbers("combine_parts(x, numbers)", _call(problem, "combine_parts", x, numbers))


def _call(problem: AnyProblem | None, name: str, x: Any, *more: Any) -> Any:
    try:
        return getattr(problem, name)(x, *more)
    except (Exception, SystemExit) as error:
        raise in_users_code(f"{name}(x{', numbers' * len(more)}) of the problem failed", error) from None


def _number(what: str, value: Any) -> float:
    """Return a value as a plain number; `what` says in an error where it comes from."""
    with suppress(Exception):
        if not isinstance(value, str):
            return float(value)
    raise RunError(f"{what} {described(value)}; it must be one number")
