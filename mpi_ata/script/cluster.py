"""The door to workers for scripts: real ranks, or simulated ones."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mpi_ata.clusters import Cluster, FaultPolicy
from mpi_ata.clusters.items import Items
from mpi_ata.job.build import check_problem
from mpi_ata.job.computation import check_sendable
from mpi_ata.job.stop import Stop
from mpi_ata.problems import AnyProblem, returns_values
from mpi_ata.script.arguments import check_arguments, suggests_names
from mpi_ata.script.description import (
    Description,
    class_text,
    described,
    described_point,
    described_times,
    run_table,
)
from mpi_ata.script.ending import end_process, report_errors_in_one_sentence, report_exit
from mpi_ata.script.place import count_workers, drawn_times, start_ranks, starts_ranks
from mpi_ata.script.together import catching_signals, joined, opened_cluster
from mpi_ata.script.words import in_python
from mpi_ata.times import DrawnTimes, Law


@suggests_names
@contextmanager
def cluster(
    problem: AnyProblem | None = None,
    times: DrawnTimes | Law | None = None,
    seed: int = 0,
    workers: int | None = None,
    faults: FaultPolicy | None = None,
    exchange: str = "auto",
) -> Iterator[Cluster]:
    """Open a cluster for a loop of your own: all ranks that mpirun or srun started must call this.

    Without a problem it is a farm: use cluster.map(function, items).

    Rank 0 continues as the manager.  All others are workers: they serve the manager here, and their process
    ends when the manager leaves.  Without a launcher, `workers` starts this script again on that many workers
    and a manager.  With `times`, tasks last as long as drawn; without ranks, workers are simulated.  `faults`
    says what to do about workers that misbehave, `exchange` how x and results travel ("auto", "star",
    "chain").  If a signal has ended a run, the script ends with this
    block, with exit code 85 if the run can be resumed.
    """
    report_errors_in_one_sentence()
    if problem is None:
        problem, faults = Items(), faults or FaultPolicy(deadline=0.0)  # items may take any time
    check_arguments(seed=seed, workers=workers, faults=faults, exchange=exchange)
    drawn = drawn_times(times, seed)
    with in_python():
        call, _ = joined("cluster", lambda: _described(problem, drawn, seed, workers, exchange))
        if workers is not None and starts_ranks(workers):
            start_ranks(workers)
    with (
        catching_signals(grace=20.0) as stop_request,
        opened_cluster(problem, drawn, seed, call.digest, stop_request, faults, exchange) as found,
    ):
        if found is None:
            sys.exit(0)
        yield found
    if stop_request:
        end_process(stop_request)
    report_exit(0)


def _described(
    problem: AnyProblem, times: DrawnTimes | None, seed: int, workers: int | None, exchange: str
) -> Description:
    """Return what all ranks must agree on, checked."""
    if returns_values(problem):
        check_sendable(problem)
    else:
        check_problem(problem, Stop())
    run_table(None, 1, exchange=exchange)
    run = {"workers": count_workers(workers, times), "seed": seed, "exchange": exchange}
    tables = {
        "problem": described(problem) | described_point(problem.x0),
        "times": described_times(times),
        "run": run,
    }
    return Description(tables, {"problem": class_text(type(problem))})
