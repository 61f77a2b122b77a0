"""The loop: a generator of rounds."""

import time
from collections.abc import Iterator

from mpi_ata.clusters import Cluster
from mpi_ata.driver.evaluation import evaluate
from mpi_ata.driver.trace import Trace
from mpi_ata.job.stop import Stop
from mpi_ata.methods import Method, Round
from mpi_ata.problems import AnyProblem


def rounds(
    method: Method,
    cluster: Cluster,
    problem: AnyProblem | None,
    stop: Stop,
    evaluate_every: int,
    trace: Trace,
) -> Iterator[Round]:
    """Yield one round after another until a limit of `stop` is reached; without one, for as long as asked.

    Every `evaluate_every` rounds the loss of `problem`, and what its evaluate(x) returns, goes into `trace`,
    off the clock.
    """
    if not trace.rows:
        _evaluate(problem, method, stop, cluster, trace)
    done = stop.reached(trace)
    while not done:
        round = _step(method, cluster, trace)
        done = stop.reached(trace)
        if done or method.k % evaluate_every == 0:
            _evaluate(problem, method, stop, cluster, trace)
            done = done or stop.reached(trace)
        yield round


def _step(method: Method, cluster: Cluster, trace: Trace) -> Round:
    """Do one round, and take it in."""
    began, before = time.perf_counter(), getattr(method, "decision_time", 0.0)
    round = method.step(cluster)
    trace.add(round, cluster.ledger)
    decision = getattr(method, "decision_time", 0.0) - before
    trace.shares.add_round(time.perf_counter() - began, round.duration, decision)
    return round


def _evaluate(problem: AnyProblem | None, method: Method, stop: Stop, cluster: Cluster, trace: Trace) -> None:
    with trace.shares.timed("evaluation_time"):
        found = evaluate(problem, method, stop.needs_loss, cluster)
    trace.record(found)
