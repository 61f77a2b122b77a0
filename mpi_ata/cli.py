"""The command line: each command parses, calls one function, prints."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import click

from mpi_ata.console import ProgressLine, closing_table, comparison_table
from mpi_ata.errors import RunError, UsageError
from mpi_ata.job import Job, load_job
from mpi_ata.run import Outcome, execute, parts_of
from mpi_ata.version import __version__


class Refused(click.ClickException):
    """Wrong usage, told in one sentence without click's lines around it."""

    exit_code = 2


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mpi-ata")
def main() -> None:
    """Adaptive task allocation: give workers of unknown, unequal speed just as many tasks as pay off."""


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which job, with which changes, and turn errors into one sentence."""

    @click.argument("job", type=click.Path(path_type=Path))
    @click.option("--virtual", is_flag=True, help="Simulate the workers in this process, on a virtual clock.")
    @click.option(
        "--workers", type=click.IntRange(min=1), help="How many workers; overrides workers in [run]."
    )
    @click.option(
        "--set", "settings", multiple=True, metavar="TABLE.KEY=VALUE", help="Override a key of the job."
    )
    @click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on the last line.")
    @wraps(command)
    def wrapped(
        job: Path, workers: int | None, settings: tuple[str, ...], virtual: bool, **options: Any
    ) -> None:
        try:
            if not virtual:
                raise UsageError("only simulated workers so far: add --virtual")
            loaded = load_job(job, settings)
            if workers is not None:
                loaded = replace(loaded, run=replace(loaded.run, workers=workers))
            command(loaded, **options)
        except UsageError as error:
            raise Refused(str(error)) from None
        except RunError as error:
            raise click.ClickException(str(error)) from None
        except OSError as error:
            raise click.ClickException(f"cannot write the result: {error.strerror}") from None

    return wrapped


@main.command(name="run")
@job_options
def run_command(job: Job, as_json: bool) -> None:
    """Run a job.

    \b
    Examples:
      mpi-ata run jobs/quadratic.toml --virtual
      mpi-ata run jobs/quadratic.toml --virtual --workers 51 --set allocator.name=gta
      mpi-ata run jobs/own_problem.toml --virtual --json
    """
    outcome = watched(job)
    click.echo(json.dumps(outcome.figures()) if as_json else closing_table(outcome.figures(), outcome.reason))
    if outcome.reason is None:
        sys.exit(1)


@main.command()
@job_options
@click.option(
    "--allocators", default="ata-empirical,gta,uta,ofta", show_default=True, help="Names, comma-separated."
)
def compare(job: Job, allocators: str, as_json: bool) -> None:
    """Run the same job under several allocators, and print one table.

    \b
    Examples:
      mpi-ata compare jobs/quadratic.toml --virtual
      mpi-ata compare jobs/quadratic.toml --virtual --workers 51 --allocators gta,ofta,ata-empirical
    """
    names = [name.strip() for name in allocators.split(",")]
    rows: list[dict[str, Any]] = []
    variants = job.with_allocators(names)
    for variant in variants:
        parts_of(variant)  # so that a wrong one is refused before time is spent on the others
    for name, variant in zip(names, variants, strict=True):
        outcome = watched(variant, label=f"{name}: ")
        rows.append({"allocator": name} | outcome.figures())
        if outcome.reason is None:
            break
    click.echo(json.dumps(rows) if as_json else comparison_table(rows))
    if not all(row["finished"] for row in rows):
        sys.exit(1)


def watched(job: Job, label: str = "") -> Outcome:
    """Execute a job with a progress line."""
    line = ProgressLine(job.stop, sys.stderr, label)
    try:
        return execute(job, line)
    finally:
        line.clear()
