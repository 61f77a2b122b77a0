"""Evaluates the problem at the current point, off the clock."""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from mpi_ata.arrays import Array, described
from mpi_ata.clusters import Cluster
from mpi_ata.clusters.interface import ClusterAbilities
from mpi_ata.errors import RunError, UsageError, diverged, in_users_code
from mpi_ata.methods import Method
from mpi_ata.methods.interface import MethodAbilities
from mpi_ata.problems import AnyProblem, EvaluationAbilities


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
    if sums := not MethodAbilities.of(method).any_x:  # a point that updates move, and that may diverge
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
        raise UsageError(f"stop.loss or stop.gap is set, but the problem has no loss; {way_out}")
    if loss is None:
        return Evaluation(metrics=metrics)
    minimum = _number("minimum of the problem is", EvaluationAbilities.of(problem).minimum)
    return Evaluation(loss, loss - minimum, metrics)


def _loss(problem: AnyProblem | None, x: Any) -> float | None:
    """Return the loss at x; None where the problem has no loss()."""
    if (function := EvaluationAbilities.of(problem).loss) is None:
        return None
    return _number("loss(x) of the problem returned", _call("loss(x)", function, x))


def _metrics(problem: AnyProblem | None, x: Any) -> dict[str, float]:
    """Return what evaluate() of the problem says of x, as plain numbers; nothing where there is none."""
    if (function := EvaluationAbilities.of(problem).evaluate) is None:
        return {}
    return _named_numbers("evaluate(x)", _call("evaluate(x)", function, x))


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
    abilities, evaluate = EvaluationAbilities.of(problem), ClusterAbilities.of(cluster).evaluate
    parts = range(abilities.evaluation_parts) if parts is None else parts
    if not parts or evaluate is None or abilities.combine_parts is None:
        return {}
    name = "combine_parts(x, numbers)"
    return _named_numbers(name, _call(name, abilities.combine_parts, x, evaluate(x, parts)))


def _call(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except (Exception, SystemExit) as error:
        raise in_users_code(f"{name} of the problem failed", error) from None


def _number(what: str, value: Any) -> float:
    """Return a value as a plain number; `what` says in an error where it comes from."""
    with suppress(Exception):
        if not isinstance(value, str):
            return float(value)
    raise RunError(f"{what} {described(value)}; it must be one number")
