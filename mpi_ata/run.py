"""The loop: a generator of rounds; execute() builds it from a job and drives it to its end."""

import math
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpi_ata.allocators import Allocator
from mpi_ata.arrays import Array
from mpi_ata.cluster import Cluster, VirtualCluster
from mpi_ata.errors import RunError, UsageError, in_users_code
from mpi_ata.job import Job
from mpi_ata.methods import Method, Round
from mpi_ata.problems import Problem
from mpi_ata.times import DrawnTimes
from mpi_ata.trace import Regret, Stop, Trace

Progress = Callable[[Trace], None]


def run(
    method: Method,
    cluster: Cluster,
    problem: Problem | None = None,
    stop: Stop | None = None,
    evaluate_every: int = 10,
    trace: Trace | None = None,
) -> Iterator[Round]:
    """Yield one round after another until `stop` says enough; without it, for as long as you ask.

    Every `evaluate_every` rounds the loss of `problem`, and what its evaluate(x) tells, goes into `trace`,
    off the clock.
    """
    stop, trace = stop or Stop(), trace or Trace()
    trace.record(*evaluate(problem, method))
    done = stop.reached(trace)
    while not done:
        round = method.step(cluster)
        trace.add(round, cluster)
        done = stop.reached(trace)
        if done or method.k % evaluate_every == 0:
            trace.record(*evaluate(problem, method))
            done = done or stop.reached(trace)
        yield round


def evaluate(problem: Problem | None, method: Method) -> tuple[float, float, dict[str, float]]:
    """Loss and gap at the method's point, NaN where they are not known, and what else the problem tells."""
    x = method.x.view()
    x.flags.writeable = False
    figures = _asked(problem, "evaluate", x) or {}
    loss = figures.pop("loss", None)  # who finds it on the way need not be asked twice
    loss = _asked(problem, "loss", x) if loss is None else loss
    if not np.isfinite(x).all() or (loss is not None and not math.isfinite(loss)):
        raise RunError(f"the run diverged by round {method.k}, with loss {loss}; try a smaller step_size")
    if loss is None:
        return math.nan, math.nan, figures
    return loss, loss - float(getattr(problem, "minimum", math.nan)), figures


def _asked(problem: Problem | None, name: str, x: Array) -> Any:
    """What a problem says of x, as plain numbers; None where it says nothing."""
    if not hasattr(problem, name):
        return None
    try:
        answer = getattr(problem, name)(x)
        if name == "loss":
            return float(answer)
        return {str(key): float(value) for key, value in answer.items()}
    except Exception as error:
        raise in_users_code(f"{name}() of the problem failed", error) from None


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    workers: int
    trace: Trace
    x: Array
    reason: str | None  # which limit was reached; None where it was interrupted

    def figures(self) -> dict[str, Any]:
        """What the run came to, in plain numbers; None where one is not known."""
        trace = self.trace
        return {
            "rounds": trace.round,
            "clock": trace.clock,
            "worker_time": trace.worker_time,
            "elapsed": trace.elapsed,
            "tasks_started": trace.started,
            "tasks_used": trace.used,
            "tasks_wasted": trace.wasted,
            "tasks_lost": trace.lost,
            "waste": trace.waste,
            "loss": None if math.isnan(trace.loss) else trace.loss,
            "gap": None if math.isnan(trace.gap) else trace.gap,
            "evaluation": {k: v if math.isfinite(v) else None for k, v in trace.evaluation.items()},
            "mean_delay": None if math.isnan(trace.mean_delay) else trace.mean_delay,
            "largest_delay": trace.largest_delay if trace.delays else None,
            "workers": self.workers,
            "finished": self.reason is not None,
        }


def parts_of(job: Job, n: int | None = None) -> tuple[Problem, DrawnTimes | None, Method]:
    """What a run of a job on n workers consists of; the job says how many, if nobody else does."""
    n = n or job.run.workers
    if n is None:
        raise UsageError(f"{job.path}: how many workers? Set workers in [run], or use --workers")
    problem, times = job.build_problem(), job.build_times(n)
    return problem, times, job.build_method(problem, n, times)


def execute(job: Job, progress: Progress | None = None) -> Outcome:
    """Run a job on the virtual cluster; Ctrl-C ends it early, with what was reached."""
    trace = Trace()
    problem, times, method = parts_of(job)
    if times is None:
        raise UsageError(f"{job.path}: a virtual clock needs a table [times], which says how long tasks take")
    _tell_means(trace, method, times)
    with closing(VirtualCluster(problem, times, job.run.seed)) as cluster:
        return _driven(job, problem, method, cluster, trace, progress)


def execute_on_ranks(
    job: Job, progress: Progress | None = None, note: Callable[[str], None] = print
) -> Outcome | None:
    """Run a job on the ranks of this MPI world; on a worker's rank there is no outcome."""
    from mpi_ata.cluster.mpi import all_agreed, joined, workers_in_world

    trace = Trace()
    with all_agreed():
        problem, times, method = parts_of(job, workers_in_world())
    _tell_means(trace, method, times)
    drawn = job.times is not None and job.times.report == "drawn"
    with joined(problem, times, job.run.seed, drawn, job.digest) as cluster:
        if cluster is None:
            return None
        if job.run.workers not in (None, cluster.n):
            note(f"the job says workers = {job.run.workers}, but this world has {cluster.n}, which counts")
        for text in cluster.notes(sleeping=times is not None):
            note(text)
        outcome = _driven(job, problem, method, cluster, trace, progress)
        if outcome.reason is None:
            cluster.abandon()
        return outcome


def _tell_means(trace: Trace, method: Method, times: DrawnTimes | None) -> None:
    """Let the trace add up the regret, where the true means are known and somebody allocates."""
    allocator: Allocator | None = getattr(method, "allocator", None)
    if times is not None and allocator is not None:
        trace.know(Regret(times.means, allocator.budget))


def _driven(
    job: Job, problem: Problem, method: Method, cluster: Cluster, trace: Trace, progress: Progress | None
) -> Outcome:
    quiet = np.errstate(over="ignore", invalid="ignore")  # evaluate() says it better
    try:
        with suppress(KeyboardInterrupt), quiet:
            for _ in run(method, cluster, problem, job.stop, job.run.evaluate_every, trace):
                if progress:
                    progress(trace)
            trace.settle(cluster)
    except (RunError, UsageError):
        raise
    except Exception as error:  # in an allocator or a method of the user's own
        raise in_users_code(f"round {method.k + 1} failed", error) from None
    return Outcome(cluster.n, trace, method.x, job.stop.reached(trace))
