"""The command that runs a job under several allocators."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click

from mpi_ata import launch
from mpi_ata.cli.options import PATH, job_options, reported, show
from mpi_ata.cli.runs import execute_with_progress, resolve_here, start_ranks, starts_ranks
from mpi_ata.driver.drive import Outcome
from mpi_ata.driver.plan import OutputOptions, Plan, checked_together
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import UsageError
from mpi_ata.job import Job
from mpi_ata.job.build import greedy_counterpart
from mpi_ata.layout import MANAGER
from mpi_ata.runfile.store import RunFile
from mpi_ata.view.plots import check_figure_path
from mpi_ata.view.summaries import comparison_table

ALLOCATORS = "ata-empirical,gta,uta"  # compared unless others are named


class Variant(NamedTuple):
    """One run of a comparison."""

    allocator: str
    seed: int
    plan: Plan


@click.command(name="compare")
@job_options
@click.option(
    "--allocators",
    help="Comma-separated names; `own` is the job's own allocator.  "
    f"[default: those of {ALLOCATORS} that the method supports]",
)
@click.option(
    "--seeds", type=click.IntRange(min=1), default=1, help="Run each with this many seeds, from run.seed on."
)
@click.option("-o", "--output", type=PATH, help="Draw the runs into a .png, .pdf or .svg file.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="A folder for the run file of each run, such as gta.h5.  [default: nothing is saved]",
)
def compare_command(
    job: Path,
    settings: tuple[str, ...],
    virtual: bool,
    allocators: str | None,
    seeds: int,
    output: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run a job under several allocators, and print one table.

    \b
    Examples:
      mpi-ata compare jobs/emulated.toml
      mpi-ata compare jobs/emulated.toml --out runs/emulated
      mpi-ata compare jobs/quadratic.toml --virtual --workers 51 --allocators gta,ofta,ata-empirical
      mpi-ata compare jobs/quadratic.toml --virtual --seeds 5 -o quadratic.png
    """
    plan = resolve_here(virtual, job, settings)
    with checked_together():  # the user's code may fail on one rank only
        if output is not None and launch.rank() == MANAGER:
            check_figure_path(output)
        names, counterpart = compared_allocators(plan.job, allocators)
        variants = list_variants(plan, names, seeds)
        variants = variants if out is None else recorded_in(out, variants)
    if starts_ranks(virtual):
        start_ranks([variant.plan for variant in variants])
    if virtual:
        for variant in variants:
            variant.plan.parts()  # rejects a wrong one before time is spent on the others
    if counterpart and launch.rank() == MANAGER:
        click.echo(f"Note: gta is left out: its counterpart here is the method {counterpart}", err=True)
    launch.take_job_age()  # no run of a comparison pays for the start of all
    outcomes = list(run_variants(variants, virtual))
    if outcomes:
        report(variants, outcomes, output, virtual, as_json)


def compared_allocators(job: Job, allocators: str | None) -> tuple[list[str], str]:
    """Return the allocators to compare, and the method to use instead of gta if that is left out."""
    names = [name.strip() for name in (ALLOCATORS if allocators is None else allocators).split(",")]
    counterpart = greedy_counterpart(job) if allocators is None else ""
    if counterpart:
        names.remove("gta")
    return names, counterpart


def list_variants(plan: Plan, names: Sequence[str], seeds: int) -> list[Variant]:
    """Return the runs of a comparison: seed by seed, so that one that is interrupted compares the same."""
    first = plan.job.run.seed
    return [
        Variant(name, seed, variant)
        for seed in range(first, first + seeds)
        for name, variant in zip(names, plan.with_seed(seed).with_allocators(names), strict=True)
    ]


def recorded_in(folder: Path, variants: Sequence[Variant]) -> list[Variant]:
    """Return the runs, each recorded in a file of this folder that does not exist yet."""
    several = len({variant.seed for variant in variants}) > 1
    check_different(variants)
    found = []
    for variant in variants:
        name = f"{variant.allocator}-{variant.seed}" if several else variant.allocator
        file = RunFile(folder / f"{name}.h5")
        if launch.rank() == MANAGER:
            OutputOptions(file.path).check()
        found.append(variant._replace(plan=replace(variant.plan, file=file)))
    return found


def check_different(variants: Sequence[Variant]) -> None:
    """Reject allocators that are named twice: their run files would have the same name."""
    count = Counter((variant.allocator, variant.seed) for variant in variants)
    if twice := [name for (name, _), times in count.items() if times > 1]:
        rule = "but --out has one run file for each"
        raise UsageError(f"--allocators names {twice[0]!r} more than once, {rule}; name it once")


def run_variants(variants: Sequence[Variant], virtual: bool) -> Iterator[Outcome]:
    """Run one after another, until one is interrupted; nothing is returned on the rank of a worker."""
    several = len({variant.seed for variant in variants}) > 1
    for name, seed, plan in variants:
        label = f"{name}, seed {seed}: " if several else f"{name}: "
        outcome = execute_with_progress(plan, virtual, label)
        if outcome is not None:
            yield outcome
            if outcome.reason is None:
                return


def report(
    variants: Sequence[Variant],
    outcomes: Sequence[Outcome],
    output: Path | None,
    virtual: bool,
    as_json: bool,
) -> None:
    """Print and draw what was run."""
    done = list(zip(variants, outcomes, strict=False))
    several = len({variant.seed for variant in variants}) > 1
    rows = [
        {"allocator": variant.allocator} | ({"seed": variant.seed} if several else {}) | outcome.summary()
        for variant, outcome in done
    ]
    if output is not None:
        draw([(variant.allocator, outcome.trace) for variant, outcome in done], output)
    show(json.dumps(rows) if as_json else comparison_table(rows, billed=not virtual))
    check_complete(variants, outcomes)


def draw(traces: Sequence[tuple[str, Trace]], output: Path) -> None:
    """Draw the runs of a comparison; what that needs is imported by the manager alone."""
    from mpi_ata.view.plots import PlottedRun, draw_runs

    runs = [
        PlottedRun(name, trace.history(), trace.cores or None, metrics=trace.metric_columns())
        for name, trace in traces
    ]
    draw_runs(runs, output)


def check_complete(variants: Sequence[Variant], outcomes: Sequence[Outcome]) -> None:
    """Report a comparison that was interrupted."""
    last = outcomes[-1]
    if last.reason is not None:
        return
    left = ", ".join(variant.allocator for variant in variants[len(outcomes) :])
    where = f"interrupted in {variants[len(outcomes) - 1].allocator} at round {last.trace.round:,}"
    raise reported(click.ClickException(where + (f"; not run: {left}" if left else "")))
