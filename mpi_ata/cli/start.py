"""Running a plan from the command line: starting its ranks, or as one of them."""

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import click

from mpi_ata import launch
from mpi_ata.driver.execute import Outcome, execute, execute_on_ranks
from mpi_ata.driver.plan import Plan
from mpi_ata.launch.mpirun import check_rank_memory
from mpi_ata.layout import ranks_for
from mpi_ata.view.live import view_of
from mpi_ata.view.progress import Line


class Notes(logging.Handler):
    """Prints what the package logs, above a progress line; if asked, each text once per command."""

    def __init__(self, line: Line, once: bool) -> None:
        super().__init__(logging.INFO)
        self._line, self._once = line, once
        self._printed: set[str] = click.get_current_context().meta.setdefault(__name__, set())

    def emit(self, record: logging.LogRecord) -> None:
        """Print one note."""
        text = record.getMessage()
        if self._once and text in self._printed:
            return
        self._printed.add(text)
        # A launcher that has ended reads nothing, and a signal may come while another line is written:
        # neither may end the run.
        with suppress(OSError, RuntimeError):
            self._line.clear()
            click.echo(f"Note: {text}", err=True)


@contextmanager
def printed_notes(line: Line, once: bool = False) -> Iterator[None]:
    """Print what the package logs meanwhile."""
    log, handler = logging.getLogger("mpi_ata"), Notes(line, once)
    level, propagate = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagate


def starts_ranks(virtual: bool) -> bool:
    """Return whether this process has to start the ranks, because no launcher did."""
    return not virtual and not launch.under_launcher()


def start_ranks(plans: Sequence[Plan]) -> None:
    """Start the ranks and never return; inside a Slurm job, on the tasks that Slurm allocated."""
    if (launch.slurm_tasks() or 1) > 1:
        from mpi_ata import slurm

        asked = click.get_current_context().params.get("workers")
        launch.exec_launcher([*slurm.launcher(asked), *launch.rank_command(sys.argv[1:])])
    workers = plans[0].job.run.workers or 1
    check_rank_memory(ranks_for(workers))
    for plan in plans:
        plan.parts()  # rejects a wrong one before ranks are started
    launch.start_ranks(workers, sys.argv[1:])


def execute_with_progress(plan: Plan, virtual: bool, label: str = "") -> Outcome | None:
    """Execute a plan with a live view or a progress line; None on the rank of a worker."""
    line = view_of(plan.job.tables, plan.job.stop, sys.stderr, label)
    with printed_notes(line, once=bool(label)):  # runs that are compared have the same notes
        try:
            return (execute if virtual else execute_on_ranks)(plan, [line])
        finally:
            line.clear()
