"""The commands that run jobs and show their results."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from mpi_ata import launch
from mpi_ata.cli.loading import load_with_energy
from mpi_ata.cli.options import errors_in_one_sentence, job_options, output_options, show
from mpi_ata.cli.start import execute_with_progress, start_ranks, starts_ranks
from mpi_ata.driver.output import OutputOptions
from mpi_ata.driver.plan import Plan, resolve, resolve_on_ranks
from mpi_ata.errors import CONTINUE
from mpi_ata.runfile.describe import describe, summary_of
from mpi_ata.runfile.record import Record
from mpi_ata.view.run import closing_table, format_run, summary_table


@click.command(name="run")
@job_options
@output_options
def run_command(
    job: Path, settings: tuple[str, ...], output: OutputOptions, virtual: bool, as_json: bool
) -> None:
    """Run a job on MPI ranks or in simulation.

    Uses the ranks that mpirun or srun started, if any; otherwise starts run.workers + 1 ranks itself.

    \b
    Examples:
      mpi-ata run jobs/quadratic.toml --virtual
      mpi-ata run jobs/emulated.toml
      mpirun -n 5 mpi-ata run jobs/emulated.toml
      mpi-ata run jobs/quadratic.toml --virtual --workers 51 --set allocator.name=gta
      mpi-ata run jobs/own_problem.toml --virtual --json
      mpi-ata run jobs/quadratic.toml --virtual --out runs/mine.h5 --resume
      mpi-ata run jobs/emulated.toml --warm-start runs/
    """
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


def show_finished(record: Record, out: Path, reason: str, as_json: bool) -> None:
    """Print the result of a run that needs no more rounds, and how to give it more."""
    limit = "rounds" if reason.endswith(" rounds") else reason.split()[0]
    more = f"to continue, set another limit, such as --set stop.{limit}=..."
    click.echo(f"Note: {out} is already finished, at {reason}; {more}", err=True)
    summary = summary_of(record, out) | {"finished": True}
    show(json.dumps(summary) if as_json else summary_table(f"at {reason}", summary))


@click.command(name="show")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON on the last line.")
@errors_in_one_sentence
def show_command(run: Path, as_json: bool) -> None:
    """Print the contents of a run file.

    Shows the job, its progress, the events and the workers.

    \b
    Examples:
      mpi-ata show runs/mine.h5
      mpi-ata show runs/mine.h5 --json
    """
    record = load_with_energy(run)
    described = describe(record)
    show(json.dumps(described) if as_json else format_run(described, run, record.method))


def resolve_here(virtual: bool, *arguments: Any) -> Plan:
    """Decide what to run: together with the other ranks under a launcher, or else in this process alone."""
    return (resolve_on_ranks if launch.under_launcher() and not virtual else resolve)(*arguments)
