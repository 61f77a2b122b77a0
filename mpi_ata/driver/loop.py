"""The loop: a generator of rounds."""

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
        trace.record(evaluate(problem, method, stop.needs_loss, cluster))
    done = stop.reached(trace)
    while not done:
        round = method.step(cluster)
        trace.add(round, cluster.ledger)
        done = stop.reached(trace)
        if done or method.k % evaluate_every == 0:
            trace.record(evaluate(problem, method, stop.needs_loss, cluster))
            done = done or stop.reached(trace)
        yield round
