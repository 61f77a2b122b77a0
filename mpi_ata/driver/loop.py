"""The loop: a generator of rounds; execute() builds it from a job and drives it to its end."""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpi_ata.allocators import Allocator
from mpi_ata.arrays import Array
from mpi_ata.clusters import Cluster, VirtualCluster
from mpi_ata.driver.recorder import Note, OutputOptions, RunRecorder
from mpi_ata.driver.trace import Regret, Trace
from mpi_ata.errors import CONTINUE, RunError, UsageError, diverged, in_users_code
from mpi_ata.job.schema import Job, load_job
from mpi_ata.job.stop import Stop
from mpi_ata.launch import allocated_cores, rank
from mpi_ata.launch.signals import GraceExpired, StopRequest
from mpi_ata.methods import Method, Round
from mpi_ata.problems import Problem
from mpi_ata.runfile.store import TakenError
from mpi_ata.times import DrawnTimes

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
    if not trace.rows:
        trace.record(*evaluate(problem, method, stop.needs_loss))
    done = stop.reached(trace)
    while not done:
        round = method.step(cluster)
        trace.add(round, cluster)
        done = stop.reached(trace)
        if done or method.k % evaluate_every == 0:
            trace.record(*evaluate(problem, method, stop.needs_loss))
            done = done or stop.reached(trace)
        yield round


def evaluate(
    problem: Problem | None, method: Method, needs_loss: bool = False
) -> tuple[float, float, dict[str, float]]:
    """Loss and gap at the method's point, NaN where they are not known, and what else the problem tells."""
    x = method.x.view()
    x.flags.writeable = False
    figures = _asked(problem, "evaluate", x) or {}
    loss = figures.pop("loss", None)  # who finds it on the way need not be asked twice
    loss = _asked(problem, "loss", x) if loss is None else loss
    if not np.isfinite(x).all() or (loss is not None and not math.isfinite(loss)):
        raise diverged(method.k, loss)
    if loss is None and needs_loss:
        way_out = "let evaluate(x) give an entry 'loss', or add loss(x)"
        raise UsageError(f"the run is to stop at a loss or gap, but the problem tells no loss; {way_out}")
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
    signal: str = ""  # by which it was
    out: Path | None = None  # where it was saved
    resumable: bool = False  # from there

    def figures(self) -> dict[str, Any]:
        """What the run came to, in plain numbers; None where one is not known."""
        return self.trace.summary() | {
            "workers": self.workers,
            "finished": self.reason is not None,
            "out": self.out and str(self.out),
        }


def parts_of(job: Job, n: int | None = None) -> tuple[Problem, DrawnTimes | None, Method]:
    """What a run of a job on n workers consists of; the job says how many, if nobody else does."""
    n = n or job.run.workers
    if n is None:
        raise UsageError(f"{job.path}: how many workers? Set workers in [run], or use --workers")
    problem, times = job.build_problem(), job.build_times(n)
    return problem, times, job.build_method(problem, n, times)


def execute(
    job: Job, progress: Progress | None = None, keeping: OutputOptions | None = None, note: Note = print
) -> Outcome:
    """Run a job on the virtual cluster; a signal ends it early, with what was reached."""
    trace = Trace()
    with StopRequest(job.run.grace) as asked:
        job, keeper = keeping.open(job, note) if keeping else (job, None)
        problem, times, method = parts_of(job)
        if times is None:
            rule = "a virtual clock needs a table [times], which says how long tasks take"
            raise UsageError(f"{job.path}: {rule}")
        _tell_means(trace, method, times)
        with closing(VirtualCluster(problem, times, job.run.seed)) as cluster:
            return _driven(job, problem, method, cluster, trace, _Watch(progress, keeper, asked))


def execute_on_ranks(
    job: Job, progress: Progress | None = None, keeping: OutputOptions | None = None, note: Note = print
) -> Outcome | None:
    """Run a job on the ranks of this MPI world; on a worker's rank there is no outcome."""
    from mpi_ata.clusters.world import mpi_cluster

    trace = Trace()
    with StopRequest(job.run.grace, on_ranks=True, leave_it=rank() > 0) as asked:
        job, keeper, (problem, times, method) = _agreed(job, keeping, note)
        _tell_means(trace, method, times)
        drawn = job.times is not None and job.times.report == "drawn"
        with (
            _in_time(asked),
            mpi_cluster(problem, times, job.run.seed, drawn, job.digest, asked.overdue) as cluster,
        ):
            if cluster is None:
                return None
            if job.run.workers not in (None, cluster.n):
                note(
                    f"workers = {job.run.workers} was asked for, but this world has {cluster.n}, which counts"
                )
            trace.cores = allocated_cores() or cluster.n + 1
            cluster.log_notes(sleeping=times is not None)
            outcome = _driven(job, problem, method, cluster, trace, _Watch(progress, keeper, asked))
            if outcome.reason is None:
                cluster.abort(CONTINUE if outcome.resumable else 1)
            return outcome


@contextmanager
def _in_time(asked: StopRequest) -> Iterator[None]:
    """Say so where the end is asked for while ranks are being set up, and they take too long for it."""
    try:
        yield
    except GraceExpired:
        raise RunError(f"{asked.name} came before all workers were set up: nothing was done") from None


def _agreed(
    job: Job, keeping: OutputOptions | None, note: Note
) -> tuple[Job, RunRecorder | None, tuple[Problem, DrawnTimes | None, Method]]:
    """The job as all ranks are to run it, and its parts; only the manager need see the run file."""
    from mpi_ata.clusters.world import bcast_text, collective_check, workers_in_world

    keeper = None
    with collective_check():
        n = workers_in_world()
        if keeping and rank() == 0:
            job, keeper = keeping.open(job, note)
    settings = json.loads(bcast_text(json.dumps(job.source.settings)))
    with collective_check():
        if keeping and rank() > 0:
            job = load_job(job.path, settings)
        return job, keeper, parts_of(job, n)


def _tell_means(trace: Trace, method: Method, times: DrawnTimes | None) -> None:
    """Let the trace add up the regret, where the true means are known and somebody allocates."""
    allocator: Allocator | None = getattr(method, "allocator", None)
    if times is not None and allocator is not None:
        trace.know(Regret(times.means, allocator.budget))


class _Watch(NamedTuple):
    """Who looks on while a run is driven."""

    progress: Progress | None
    keeper: RunRecorder | None
    asked: StopRequest  # to end


@contextmanager
def _remains_told(method: Method, keeper: RunRecorder | None) -> Iterator[None]:
    """Where rounds fail, say what is left of the run."""
    try:
        yield
    except (GraceExpired, UsageError, TakenError):
        raise
    except Exception as error:
        if not isinstance(error, RunError):  # in an allocator or a method of the user's own
            error = in_users_code(f"round {method.k + 1} failed", error)
        raise (RunError(f"{error}\n{keeper.remains()}") if keeper else error) from None


def _driven(
    job: Job, problem: Problem, method: Method, cluster: Cluster, trace: Trace, watch: _Watch
) -> Outcome:
    progress, keeper, asked = watch
    cluster.overdue = asked.overdue
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # evaluate() says it better
            if keeper:
                keeper.begin(method, cluster, trace)
            with _remains_told(method, keeper):
                for _ in run(method, cluster, problem, job.stop, job.run.evaluate_every, trace):
                    if progress:
                        progress(trace)
                    if asked:
                        break
                    if keeper:
                        keeper.after_round(method, cluster, trace)
            reason = job.stop.reached(trace)
            if keeper:
                keeper.end(method, cluster, trace, reason, asked.name)
            elif reason:
                trace.settle(cluster)
    except (GraceExpired, KeyboardInterrupt):  # in the middle of a round: what was saved last is what is left
        reason = None
    except (RunError, UsageError):
        raise
    except Exception as error:  # in an allocator or a method of the user's own
        raise in_users_code(f"round {method.k + 1} failed", error) from None
    out, resumable = (keeper.path, keeper.resumable) if keeper else (None, False)
    return Outcome(cluster.n, trace, method.x, reason, asked.name, out, resumable)
