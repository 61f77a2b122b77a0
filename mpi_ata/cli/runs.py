"""The commands that run jobs, and show what came of them."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from mpi_ata import launch
from mpi_ata.cli.options import Refused, job_options, output_options, show, told
from mpi_ata.cli.running import start_ranks, starts_ranks, watched
from mpi_ata.driver.loop import parts_of
from mpi_ata.driver.recorder import OutputOptions, load_named
from mpi_ata.errors import CONTINUE, UsageError
from mpi_ata.job.schema import Job
from mpi_ata.runfile.record import Record, describe, summary_of
from mpi_ata.runfile.store import RunFile
from mpi_ata.view.tables import closing_table, comparison_table, ended_table, shown

ALLOCATORS = "ata-empirical,gta,uta"  # compared unless others are named


@click.command(name="run")
@job_options
@output_options
def run_command(job: Job, keeping: OutputOptions, virtual: bool, as_json: bool) -> None:
    """Run a job: on the ranks that mpirun or srun started, else on ranks of its own.

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
    if virtual or starts_ranks(virtual):
        keeping.check()
        if keeping.out and (record := keeping.finished(job)):
            show_finished(record, keeping.out, as_json)
            return
    if starts_ranks(virtual):
        start_ranks([keeping.continued(job)])
    outcome = watched(job, virtual, keeping)
    if outcome is None:
        return
    show(json.dumps(outcome.figures()) if as_json else closing_table(outcome))
    if outcome.reason is None:
        sys.exit(CONTINUE if outcome.resumable else 1)


def show_finished(record: Record, out: Path, as_json: bool) -> None:
    """Print the result of a run that needs no more rounds, and how it gets more."""
    limit = "rounds" if record.reason.endswith(" rounds") else record.reason.split()[0]
    more = f"for more, set another limit, such as --set stop.{limit}=..."
    click.echo(f"Note: {out} is finished already, at {record.reason}; {more}", err=True)
    figures = summary_of(record, out)
    show(json.dumps(figures) if as_json else ended_table(f"at {record.reason}", figures))


@click.command(name="show")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON on the last line.")
def show_command(run: Path, as_json: bool) -> None:
    """Tell what a run file knows: the job, how far it is, what happened, and who its workers are.

    \b
    Examples:
      mpi-ata show runs/mine.h5
      mpi-ata show runs/mine.h5 --json
    """
    try:
        record, complaint = load_named(RunFile(run))
    except UsageError as error:
        raise Refused(str(error)) from None
    if complaint:
        click.echo(f"Note: {complaint}", err=True)
    found = describe(record)
    show(json.dumps(found) if as_json else shown(found))


@click.command()
@job_options
@click.option(
    "--allocators",
    help=f"Names, comma-separated; own: the job's own.  [default: {ALLOCATORS}, as far as the method goes]",
)
def compare(job: Job, virtual: bool, allocators: str | None, as_json: bool) -> None:
    """Run the same job under several allocators, and print one table.

    \b
    Examples:
      mpi-ata compare jobs/emulated.toml
      mpi-ata compare jobs/quadratic.toml --virtual --workers 51 --allocators gta,ofta,ata-empirical
    """
    names = [name.strip() for name in (ALLOCATORS if allocators is None else allocators).split(",")]
    refused = allocators is None and job.greedy_instead
    if refused:
        names.remove("gta")
    variants = job.with_allocators(names)
    if virtual:
        for variant in variants:
            parts_of(variant)  # so that a wrong one is refused before time is spent on the others
    if starts_ranks(virtual):
        start_ranks(variants)
    if refused and launch.rank() == 0:
        click.echo(f"Note: gta is left out: its counterpart here is the method {refused}", err=True)
    rows: list[dict[str, Any]] = []
    for name, variant in zip(names, variants, strict=True):
        outcome = watched(variant, virtual, label=f"{name}: ")
        if outcome is not None:
            rows.append({"allocator": name} | outcome.figures())
            if outcome.reason is None:
                break
    if not rows:
        return
    show(json.dumps(rows) if as_json else comparison_table(rows, billed=not virtual))
    if not rows[-1]["finished"]:
        left = ", ".join(names[len(rows) :])
        where = f"interrupted in {rows[-1]['allocator']} at round {rows[-1]['rounds']:,}"
        raise told(click.ClickException(where + (f"; not run: {left}" if left else "")))
