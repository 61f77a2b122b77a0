"""Where the workers of a script are: ranks that a launcher started, ranks to be started, or a simulation."""

import os
import sys
from contextlib import suppress

from mpi_ata import launch
from mpi_ata.errors import UsageError, one_line
from mpi_ata.job.times_table import short_label
from mpi_ata.layout import ranks_for
from mpi_ata.script.description import described, script_path
from mpi_ata.times import DrawnTimes, Law

NO_RANKS = (
    "no launcher has started ranks: use mpirun -n 5 python SCRIPT.py, let the script start them with "
    "workers=4, or simulate workers with times=Sqrt(4)"
)
NO_SCRIPT = (
    "workers={0} needs a script that all ranks can run: save this as SCRIPT.py and use python SCRIPT.py, "
    "name the problem by its file, as in minimize('my_problem.py:MyProblem', workers={0}, ...), or simulate "
    "workers with times=Sqrt({0})"
)


def drawn_times(times: DrawnTimes | Law | None, seed: int) -> DrawnTimes | None:
    """Return the task times to be drawn; a law is drawn with the seed of the run, in seconds."""
    if times is None or isinstance(times, DrawnTimes):
        return times
    if isinstance(times, type) or not (hasattr(times, "n") and hasattr(times, "draw")):
        raise UsageError(f"times={times!r} is no law of task times; use one such as Sqrt(4)")
    keys = described(times)
    try:
        return DrawnTimes(times, seed, label=short_label(f"{keys.pop('class')} {keys} x 1 s"))
    except ValueError as error:
        raise UsageError(one_line(error)) from None


def count_workers(workers: int | None, times: DrawnTimes | None) -> int:
    """Return how many workers there are, or are to be started; reject numbers that disagree."""
    if workers is not None and workers < 1:
        raise UsageError(f"workers={workers} must be at least 1")
    if times is not None and workers not in (None, times.n):
        raise UsageError(f"times are those of {times.n} workers, but workers={workers}: make the two agree")
    if launch.under_launcher():
        return _started_workers(workers, times)
    if workers is None and times is None:
        raise UsageError(NO_RANKS)
    return times.n if workers is None and times is not None else workers or 1


def _started_workers(workers: int | None, times: DrawnTimes | None) -> int:
    from mpi_ata.clusters.world import workers_in_world

    n = workers_in_world()
    if workers not in (None, n):
        raise UsageError(
            f"workers={workers} needs {ranks_for(workers or 0)} ranks (1 manager + {workers} workers), but "
            f"mpirun started {ranks_for(n)}; use mpirun -n {ranks_for(workers or 0)}, or leave workers out"
        )
    if times is not None and times.n != n:
        raise UsageError(f"times are those of {times.n} workers, but mpirun started {n}: make the two agree")
    return n


def starts_ranks(workers: int | None) -> bool:
    """Return whether this process has to start the ranks."""
    return workers is not None and not launch.under_launcher()


def start_ranks(workers: int) -> None:
    """Run this script on ranks, and exit with its exit code; inside a Slurm job, on its tasks."""
    if script_path() is None:
        raise UsageError(NO_SCRIPT.format(workers))
    with suppress(AttributeError, ValueError):  # streams that a notebook or a test has replaced
        sys.stdout.flush()
    if (launch.slurm_tasks() or 1) > 1:
        from mpi_ata.slurm.launcher import launcher

        os.chdir(launch.script_folder())
        launch.exec_launcher([*launcher(workers), *launch.script_command()])
    launch.start_script(workers)
