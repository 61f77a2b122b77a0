"""Evaluates the problem at the current point, off the clock."""

import math
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from mpi_ata.arrays import Array, described
from mpi_ata.clusters import Cluster
from mpi_ata.clusters.interface import ClusterAbilities
from mpi_ata.errors import RunError, UsageError, diverged, users_code
from mpi_ata.methods import Method
from mpi_ata.methods.interface import MethodAbilities
from mpi_ata.problems import AnyProblem, EvaluationAbilities
from mpi_ata.turns import outside_of_turns


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
    x, metrics, can = method.x, {}, EvaluationAbilities.of(problem)
    if sums := not MethodAbilities.of(method).any_x:  # a point that updates move, and that may diverge
        x = x.view()
        x.flags.writeable = False
        metrics = evaluate_in_parts(problem, x, cluster) if can.evaluation_parts else {}
    if not metrics and can.evaluate is not None:
        with users_code("evaluate(x) of the problem failed"), outside_of_turns():
            answer = can.evaluate(x)
        metrics = _named_numbers("evaluate(x)", answer)
    loss = metrics.pop("loss", None)  # a problem that computes it anyway need not do so twice
    if loss is None and can.loss is not None:
        with users_code("loss(x) of the problem failed"), outside_of_turns():
            answer = can.loss(x)
        loss = _number("loss(x) of the problem returned", answer)
    if sums and not (np.isfinite(x).all() and (loss is None or math.isfinite(loss))):
        raise diverged(method.k, loss)
    if loss is not None:
        return Evaluation(loss, loss - _number("minimum of the problem is", can.minimum), metrics)
    if needs_loss:
        way_out = "let evaluate(x) return an entry 'loss', or add loss(x)"
        raise UsageError(f"stop.loss or stop.gap is set, but the problem has no loss; {way_out}")
    return Evaluation(metrics=metrics)


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
    can, evaluate = EvaluationAbilities.of(problem), ClusterAbilities.of(cluster).evaluate
    parts = range(can.evaluation_parts) if parts is None else parts
    if not parts or evaluate is None or can.combine_parts is None:
        return {}
    numbers = evaluate(x, parts)
    with users_code("combine_parts(x, numbers) of the problem failed"):
        answer = can.combine_parts(x, numbers)
    return _named_numbers("combine_parts(x, numbers)", answer)


def _number(what: str, value: Any) -> float:
    """Return a value as a plain number; `what` says in an error where it comes from."""
    with suppress(Exception):
        if not isinstance(value, str):
            return float(value)
    raise RunError(f"{what} {described(value)}; it must be one number")
