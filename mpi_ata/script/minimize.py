"""One call for a whole run: the counterpart of `mpi-ata run` for scripts and notebooks."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from mpi_ata.allocators import Allocator
from mpi_ata.clusters import FaultPolicy
from mpi_ata.driver.drive import Drive
from mpi_ata.driver.execute import log_notes
from mpi_ata.driver.observers import Observer
from mpi_ata.driver.opening import start_billing
from mpi_ata.driver.restore import track_regret
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import CONTINUE
from mpi_ata.job.build import replicated_update
from mpi_ata.job.stop import Stop
from mpi_ata.problems import Problem
from mpi_ata.script.arguments import suggests_names
from mpi_ata.script.description import script_path
from mpi_ata.script.ending import end_process, report_errors_in_one_sentence, report_exit
from mpi_ata.script.generated_job import run_generated_job
from mpi_ata.script.place import start_ranks, starts_ranks
from mpi_ata.script.progress import shown_progress
from mpi_ata.script.request import Prepared, Request
from mpi_ata.script.result import Result, result_of, saved_result
from mpi_ata.script.together import catching_signals, is_worker, joined, opened_cluster
from mpi_ata.script.words import in_python
from mpi_ata.times import DrawnTimes, Law
from mpi_ata.updates import Update

log = logging.getLogger("mpi_ata")

FINISHED = "finished"  # the manager's note that there is nothing left to do


@suggests_names
def minimize(
    problem: Problem | str,
    budget: int | None = None,
    *,
    update: Update,
    rounds: int | None = None,
    stop: Stop | None = None,
    allocator: str | Allocator | Callable[[int], Allocator] | None = None,
    workers: int | None = None,
    times: DrawnTimes | Law | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    warm_start: str | Path | Sequence[str | Path] = (),
    prior_weight: float = 1.0,
    any_problem: bool = False,
    accept_changes: bool = False,
    evaluate_every: int = 10,
    observers: Sequence[Observer] = (),
    progress: bool = True,
    checkpoint_rounds: int | None = None,
    checkpoint_seconds: float | None = None,
    grace: float = 20.0,
    faults: FaultPolicy | None = None,
    exchange: str = "auto",
    replicated: bool = False,
) -> Result | None:
    """Minimize a problem by SGD with `budget` tasks per round, and return the result; None on workers.

    Every rank that mpirun or srun started must call this; workers serve the manager, rank 0, and get None.
    Without a launcher, `workers` starts this script again on that many workers and a manager, and exits with
    their exit code; only `times`, a law of task times, simulates them in this process.  With both, tasks on
    ranks last as long as drawn.  `problem` may also be named by its file: "my_problem.py:MyProblem".

    The run ends after `rounds`, or at a limit of `stop`.  `allocator` is a name as in job files, a function
    of the number of workers, or an allocator; "ata-auto" if none is given.  The manager shows its progress on
    stderr, unless `progress` is False.  With `replicated`, workers keep x and the state of the update.  All
    other arguments are those of `run` and `cluster`.  A signal ends the run after the current round; a script
    then exits, with code 85 if the run can be resumed.
    """
    report_errors_in_one_sentence()
    request = Request(
        problem=problem,
        budget=budget,
        update=update,
        rounds=rounds,
        stop=stop,
        allocator=allocator,
        workers=workers,
        times=times,
        seed=seed,
        out=out,
        resume=resume,
        warm_start=warm_start,
        prior_weight=prior_weight,
        any_problem=any_problem,
        accept_changes=accept_changes,
        evaluate_every=evaluate_every,
        checkpoint_rounds=checkpoint_rounds,
        checkpoint_seconds=checkpoint_seconds,
        grace=grace,
        faults=faults,
        observers=observers,
        progress=progress,
        exchange=exchange,
        replicated=replicated,
    )
    with in_python():
        if starts_ranks(workers) and script_path() is None:
            return run_generated_job(request)
        prepared, note = joined(
            "minimize", request.prepare, lambda found: FINISHED * bool(found.start.finished)
        )
        if note == FINISHED:
            return None if is_worker() else _finished(prepared)
        if workers is not None and starts_ranks(workers):
            start_ranks(workers)
        return _driven(prepared, request)


def _finished(prepared: Prepared) -> Result:
    """Return the result of a run that needs no more rounds."""
    assert prepared.start.file is not None
    log_notes(prepared.start)
    return saved_result(prepared.start.file.path)


def _driven(prepared: Prepared, request: Request) -> Result | None:
    """Run it on the ranks, or in a simulation."""
    problem, times, method, start = prepared.problem, prepared.times, prepared.method, prepared.start
    trace = Trace()
    with catching_signals(start.job.run.grace) as stop_request:
        log_notes(start)
        opened = problem, times, request.seed, prepared.digest, stop_request, request.faults
        with opened_cluster(*opened, start.job.run.exchange, replicated_update(method)) as cluster:
            if cluster is None:
                return None
            start_billing(trace, cluster)
            track_regret(trace, method, times)
            with shown_progress(prepared.described, request.progress) as shown:
                observers = [*request.observers, *shown]
                outcome = Drive(start, method, problem, cluster, trace, observers, stop_request).outcome()
            stop_request.exit_code = CONTINUE if outcome.resumable else 1
    if outcome.reason is None:
        end_process(stop_request)
    report_exit(0)
    return result_of(outcome)
