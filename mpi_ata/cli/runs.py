"""The commands that run jobs and show their results."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from mpi_ata import launch
from mpi_ata.cli.options import errors_in_one_sentence, job_options, output_options, reported, show
from mpi_ata.cli.start import execute_with_progress, start_ranks, starts_ranks
from mpi_ata.driver.output import OutputOptions
from mpi_ata.driver.plan import Plan, checked_together, resolve, resolve_on_ranks
from mpi_ata.errors import CONTINUE
from mpi_ata.job import Job
from mpi_ata.job.build import greedy_counterpart
from mpi_ata.layout import MANAGER
from mpi_ata.runfile.describe import describe, summary_of
from mpi_ata.runfile.load import load_named
from mpi_ata.runfile.record import Record
from mpi_ata.runfile.store import RunFile
from mpi_ata.view.compare import comparison_table
from mpi_ata.view.run import closing_table, format_run, summary_table

ALLOCATORS = "ata-empirical,gta,uta"  # compared unless others are named


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
        show_finished(plan.earlier, plan.file.path, as_json)
        return
    if starts_ranks(virtual):
        start_ranks([plan])
    outcome = execute_with_progress(plan, virtual)
    if outcome is None:
        return
    show(json.dumps(outcome.summary()) if as_json else closing_table(outcome))
    if outcome.reason is None:
        sys.exit(CONTINUE if outcome.resumable else 1)


def show_finished(record: Record, out: Path, as_json: bool) -> None:
    """Print the result of a run that needs no more rounds, and how to give it more."""
    limit = "rounds" if record.reason.endswith(" rounds") else record.reason.split()[0]
    more = f"to continue, set another limit, such as --set stop.{limit}=..."
    click.echo(f"Note: {out} is already finished, at {record.reason}; {more}", err=True)
    summary = summary_of(record, out)
    show(json.dumps(summary) if as_json else summary_table(f"at {record.reason}", summary))


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
    record, complaint = load_named(RunFile(run))
    if complaint:
        click.echo(f"Note: {complaint}", err=True)
    described = describe(record)
    show(json.dumps(described) if as_json else format_run(described, run, record.method["x"]))


@click.command()
@job_options
@click.option(
    "--allocators",
    help="Comma-separated names; `own` is the job's own allocator.  "
    f"[default: those of {ALLOCATORS} that the method supports]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="A folder for the run file of each allocator, such as gta.h5.  [default: nothing is saved]",
)
def compare(
    job: Path,
    settings: tuple[str, ...],
    virtual: bool,
    allocators: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run a job under several allocators, and print one table.

    \b
    Examples:
      mpi-ata compare jobs/emulated.toml
      mpi-ata compare jobs/emulated.toml --out runs/emulated
      mpi-ata compare jobs/quadratic.toml --virtual --workers 51 --allocators gta,ofta,ata-empirical
    """
    plan = resolve_here(virtual, job, settings)
    with checked_together():  # the user's code may fail on one rank only
        names, counterpart = compared_allocators(plan.job, allocators)
        variants = plan.with_allocators(names)
        variants = variants if out is None else recorded_in(out, names, variants)
    if starts_ranks(virtual):
        start_ranks(variants)
    if virtual:
        for variant in variants:
            variant.parts()  # rejects a wrong one before time is spent on the others
    if counterpart and launch.rank() == MANAGER:
        click.echo(f"Note: gta is left out: its counterpart here is the method {counterpart}", err=True)
    rows = run_variants(dict(zip(names, variants, strict=True)), virtual)
    if rows:
        show(json.dumps(rows) if as_json else comparison_table(rows, billed=not virtual))
        check_complete(rows, names)


def compared_allocators(job: Job, allocators: str | None) -> tuple[list[str], str]:
    """Return the allocators to compare, and the method to use instead of gta if that is left out."""
    names = [name.strip() for name in (ALLOCATORS if allocators is None else allocators).split(",")]
    counterpart = greedy_counterpart(job) if allocators is None else ""
    if counterpart:
        names.remove("gta")
    return names, counterpart


def recorded_in(folder: Path, names: Sequence[str], variants: Sequence[Plan]) -> list[Plan]:
    """Return the plans, each recorded in a file of this folder that does not exist yet."""
    files = [folder / f"{name}.h5" for name in names]
    if launch.rank() == MANAGER:
        for file in files:
            OutputOptions(file).check()
    return [replace(plan, file=RunFile(file)) for plan, file in zip(variants, files, strict=True)]


def run_variants(variants: dict[str, Plan], virtual: bool) -> list[dict[str, Any]]:
    """Run a plan under each allocator, and return a row for each; none on the rank of a worker."""
    rows: list[dict[str, Any]] = []
    for name, variant in variants.items():
        outcome = execute_with_progress(variant, virtual, label=f"{name}: ")
        if outcome is not None:
            rows.append({"allocator": name} | outcome.summary())
            if outcome.reason is None:
                break
    return rows


def check_complete(rows: list[dict[str, Any]], names: list[str]) -> None:
    """Report a comparison that was interrupted."""
    if rows[-1]["finished"]:
        return
    left = ", ".join(names[len(rows) :])
    where = f"interrupted in {rows[-1]['allocator']} at round {rows[-1]['rounds']:,}"
    raise reported(click.ClickException(where + (f"; not run: {left}" if left else "")))


def resolve_here(virtual: bool, *arguments: Any) -> Plan:
    """Decide what to run: together with the other ranks under a launcher, or else in this process alone."""
    return (resolve_on_ranks if launch.under_launcher() and not virtual else resolve)(*arguments)
