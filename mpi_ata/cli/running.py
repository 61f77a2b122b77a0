"""Running a job from the command line: on ranks of its own, or as one of them."""

import os
import sys
from collections.abc import Sequence
from functools import partial

import click

from mpi_ata import launch
from mpi_ata.driver.loop import Outcome, execute, execute_on_ranks, parts_of
from mpi_ata.driver.recorder import OutputOptions
from mpi_ata.job.schema import Job
from mpi_ata.view.progress import ProgressLine


def noted(line: ProgressLine, text: str) -> None:
    """Tell the user something beside the result."""
    line.clear()
    click.echo(f"Note: {text}", err=True)


def noted_once(line: ProgressLine, text: str) -> None:
    """The same, unless this command has told it already."""
    told: set[str] = click.get_current_context().meta.setdefault(f"{__name__}.told", set())
    if text not in told:
        told.add(text)
        noted(line, text)


def starts_ranks(virtual: bool) -> bool:
    """Whether this process is to start the ranks, since nobody else has."""
    return not virtual and not launch.under_launcher()


def start_ranks(jobs: Sequence[Job]) -> None:
    """Start the ranks, and become their launcher: inside of a Slurm job on what it was given."""
    if (launch.slurm_tasks() or 1) > 1:
        from mpi_ata import slurm

        given = click.get_current_context().params.get("workers")
        launch.exec_launcher([*slurm.launcher(given), *launch.rank_command(sys.argv[1:])])
    for job in jobs:
        parts_of(job)
    launch.start_ranks(jobs[0].run.workers or 1, sys.argv[1:])


def watched(job: Job, virtual: bool, keeping: OutputOptions | None = None, label: str = "") -> Outcome | None:
    """Execute a job with a progress line; None on the rank of a worker."""
    line = ProgressLine(job.stop, sys.stderr, label, bool(os.environ.get(launch.TERMINAL)))
    try:
        note = partial(noted, line) if keeping else partial(noted_once, line)
        return (execute if virtual else execute_on_ranks)(job, line, keeping, note)
    finally:
        line.clear()
