"""Running a job from the command line: what to run, on which ranks, with which progress line."""

import json
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer
from typing import Any

import click

from mpi_ata import launch
from mpi_ata.cli.options import array_options, jobs_argument, output_options, show, where_options
from mpi_ata.driver.drive import Outcome
from mpi_ata.driver.execute import execute, execute_on_ranks
from mpi_ata.driver.jobs import (
    JobSpec,
    resolve_jobs,
    resolve_jobs_on_ranks,
    run_jobs_on_ranks,
    simulate_jobs,
    specify_jobs,
)
from mpi_ata.driver.plan import OutputOptions, Plan, resolve, resolve_on_ranks
from mpi_ata.errors import CONTINUE, UsageError, command_line
from mpi_ata.launch.mpirun import check_rank_memory
from mpi_ata.layout import ranks_for
from mpi_ata.runfile.load import summary_of
from mpi_ata.runfile.priors import counted
from mpi_ata.runfile.progress import note_members
from mpi_ata.runfile.schema import Record
from mpi_ata.turns import in_turn_thread
from mpi_ata.view.live import Display, JobsProgress, RunView
from mpi_ata.view.summaries import closing_table, jobs_table, summary_table


@click.command(name="run")
@jobs_argument
@where_options
@array_options
@output_options
def run_command(
    jobs: tuple[Path, ...],
    args: tuple[str, ...],
    settings: tuple[str, ...],
    array: tuple[str, ...],
    at_once: int | None,
    output: OutputOptions,
    virtual: bool,
    as_json: bool,
) -> None:
    """Run a job on MPI ranks or in simulation.

    Uses the ranks that mpirun or srun started, if any; otherwise starts run.workers + 1 ranks itself.
    Several jobs, or one with --array, share the ranks: what one does not use serves the others; then
    --out is a folder.

    \b
    Examples:
      mpi-ata run jobs/quadratic.toml --virtual
      mpi-ata run jobs/emulated.toml
      mpirun -n 5 mpi-ata run jobs/emulated.toml
      mpi-ata run jobs/quadratic.toml --virtual --workers 51 --set allocator.name=gta
      mpi-ata run jobs/own_problem.toml --virtual --json
      mpi-ata run jobs/quadratic.toml --virtual --out runs/mine.h5 --resume
      mpi-ata run jobs/emulated.toml --warm-start runs/
      mpi-ata run jobs/emulated.toml --array method.step_size=0.1,0.2,0.4 --array run.seed=1,2
      mpi-ata run jobs/quadratic.toml jobs/own_problem.toml --virtual --workers 17 --out runs/both
    """
    if jobs[0].suffix == ".py":
        command = command_line("python", jobs[0], *args)
        raise UsageError(f"{jobs[0]} is a script, not a job file: use {command}, or submit it to Slurm")
    if len(jobs) > 1 or array:
        run_shared(specify_jobs(jobs, settings, array), at_once, output, virtual, as_json)
        return
    if at_once is not None:
        raise UsageError("--at-once requires several jobs, or --array")
    job = jobs[0]
    plan = resolve_here(virtual, job, settings, output)
    if plan.finished and plan.earlier and plan.file and (virtual or not launch.under_launcher()):
        show_finished(plan.earlier, plan.file.path, plan.finished, as_json)
        return
    if starts_ranks(virtual):
        start_ranks([plan])
    outcome = execute_with_progress(plan, virtual)
    if outcome is None:
        return
    show(json.dumps(outcome.summary()) if as_json else closing_table(outcome))
    if outcome.reason is None:
        sys.exit(CONTINUE if outcome.resumable else 1)


def run_shared(
    specs: list[JobSpec], at_once: int | None, output: OutputOptions, virtual: bool, as_json: bool
) -> None:
    """Run several jobs on the same workers, and print how each ended."""
    runs = (resolve_jobs_on_ranks if launch.under_launcher() and not virtual else resolve_jobs)(specs, output)
    if starts_ranks(virtual):
        files = {run.start.job.path: run.start for run in runs if isinstance(run.start, Plan)}
        start_ranks(list(files.values()))  # one of each file is built, to find mistakes
    if out := [run.start.file.path for run in runs if run.start.file is not None]:  # workers see no files
        note_members(out[0].parent, [path.stem for path in out])
    line = Display(sys.stderr)
    with printed_notes(line, once=True):  # about a worker, all jobs have the same
        try:
            execute = simulate_jobs if virtual else run_jobs_on_ranks
            stop_request = execute(runs, at_once, JobsProgress(line, runs))
        finally:
            line.clear()
    if stop_request is None:
        return
    rows = [run.summary() for run in runs]
    show(json.dumps(rows) if as_json else jobs_table(rows))
    if failed := [run for run in runs if run.error]:
        for run in failed:
            show(f"Error: {run.name}: {run.error}", err=True)
        sys.exit(1)
    if any(run.state != "finished" for run in runs):
        show("Note: the jobs that are not finished are resumed by the same command with --resume", err=True)
        sys.exit(CONTINUE)


def show_finished(record: Record, out: Path, reason: str, as_json: bool) -> None:
    """Print the result of a run that needs no more rounds, and how to give it more."""
    limit = "rounds" if " round" in reason else reason.split()[0]
    more = f"to continue, set another limit, such as --set stop.{limit}=..."
    show(f"Note: {out} is already finished, at {reason}; {more}", err=True)
    summary = summary_of(record, out) | {"finished": True}
    show(json.dumps(summary) if as_json else summary_table(f"at {reason}", summary))


def resolve_here(virtual: bool, *arguments: Any) -> Plan:
    """Decide what to run: together with the other ranks under a launcher, or else in this process alone."""
    return (resolve_on_ranks if launch.under_launcher() and not virtual else resolve)(*arguments)


COLLECTOR = "collector"  # the module that logs what happens to workers, the same for all jobs that share them


class Notes(logging.Handler):
    """Prints what the package logs, above a progress line; if asked, each text once per command."""

    def __init__(self, line: Display, once: bool) -> None:
        super().__init__(logging.INFO)
        self._line, self._once = line, once
        self._printed: set[str] = click.get_current_context().meta.setdefault(__name__, set())

    def emit(self, record: logging.LogRecord) -> None:
        """Print one note."""
        text, whose = record.getMessage(), f"{record.threadName}: " if in_turn_thread() else ""
        key = text if record.module == COLLECTOR else f"{whose}{text}"
        if self._once and key in self._printed:
            return
        self._printed.add(key)
        # A launcher that has ended reads nothing, and a signal may come while another line is written:
        # neither may end the run.
        with suppress(OSError, RuntimeError):
            self._line.clear()
            show(f"Note: {whose}{text}", err=True)


@contextmanager
def printed_notes(line: Display, once: bool = False) -> Iterator[None]:
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


SLOW_SECONDS = 3.0  # of a set-up, after which it is said what takes long


def start_ranks(plans: Sequence[Plan]) -> None:
    """Start the ranks and never return; inside a Slurm job, on the tasks that Slurm allocated."""
    if (launch.slurm_tasks() or 1) > 1:
        from mpi_ata.batch.interface import scheduler

        asked = click.get_current_context().params.get("workers")
        launch.exec_launcher([*scheduler().launcher(asked), *launch.rank_command(sys.argv[1:])])
    workers = plans[0].job.run.workers or 1
    if others := sorted({plan.job.run.workers for plan in plans if plan.job.run.workers} - {workers}):
        asked = " and ".join(map(str, others))
        text = f"all jobs share {counted(workers, 'worker')}, as the first one asks; others ask for {asked}"
        show(f"Note: {text}", err=True)
    check_rank_memory(ranks_for(workers))
    what = "Note: set-up takes long: once here, to find mistakes, then on all ranks"
    slow = Timer(SLOW_SECONDS, show, [what, True])
    slow.daemon = True
    slow.start()
    try:
        for plan in plans:
            plan.parts()  # rejects a wrong one before ranks are started
    finally:
        slow.cancel()
    launch.start_ranks(workers, launch.rank_command(sys.argv[1:]))


def execute_with_progress(plan: Plan, virtual: bool, label: str = "") -> Outcome | None:
    """Execute a plan with a live view or a progress line; None on the rank of a worker."""
    line = RunView(plan.job, sys.stderr, label)
    with printed_notes(line, once=bool(label)):  # runs that are compared have the same notes
        try:
            return (execute if virtual else execute_on_ranks)(plan, [line])
        finally:
            line.clear()
