"""The command that runs a job under several allocators or methods."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click

from mpi_ata import launch
from mpi_ata.cli import reported
from mpi_ata.cli.options import PATH, complete_allocators, job_options, show
from mpi_ata.cli.runs import execute_with_progress, resolve_here, start_ranks, starts_ranks
from mpi_ata.driver.drive import Outcome
from mpi_ata.driver.plan import OutputOptions, Plan, checked_together
from mpi_ata.errors import RunError, UsageError
from mpi_ata.job import Job
from mpi_ata.job.build import greedy_counterpart
from mpi_ata.layout import MANAGER
from mpi_ata.runfile.store import RunFile
from mpi_ata.view.plots import check_figure_path
from mpi_ata.view.summaries import comparison_table

DEFAULT = "ata-auto,own,gta,uta"  # compared unless others are named


class Variant(NamedTuple):
    """One run of a comparison."""

    allocator: str  # or method
    seed: int | None  # None where all have the same
    plan: Plan
    kind: str = "allocator"  # or "method"

    def named(self, separator: str) -> str:
        """Return the allocator, and the seed where it matters."""
        return self.allocator if self.seed is None else f"{self.allocator}{separator}{self.seed}"

    def row(self, outcome: Outcome) -> dict[str, Any]:
        """Return its result, with what it was run with."""
        seed = {} if self.seed is None else {"seed": self.seed}
        return {self.kind: self.allocator, **seed, **outcome.summary()}


@click.command(name="compare")
@job_options
@click.option(
    "--allocators",
    shell_complete=complete_allocators,
    help="Comma-separated names; `own` is the job's own allocator.  "
    f"[default: those of {DEFAULT} that the method supports]",
)
@click.option(
    "--methods",
    help="Compare methods instead: comma-separated names, with keys of [method] where they need others, "
    "as in sgd,ringmaster:delay=20:step_size=0.05.",
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
    methods: str | None,
    seeds: int,
    output: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run a job under several allocators or methods, in one table.

    \b
    Examples:
      mpi-ata compare jobs/emulated.toml
      mpi-ata compare jobs/emulated.toml --out runs/emulated
      mpi-ata compare jobs/quadratic.toml --virtual --workers 51 --allocators gta,ofta,ata-empirical
      mpi-ata compare jobs/quadratic.toml --virtual --seeds 5 -o quadratic.png
      mpi-ata compare jobs/quadratic.toml --virtual --methods sgd,asgd:step_size=0.05
    """
    if methods is not None and allocators is not None:
        raise UsageError("--methods and --allocators cannot be combined; use --set allocator.name=...")
    plan = resolve_here(virtual, job, settings)
    with checked_together():  # the user's code may fail on one rank only
        if output is not None and launch.rank() == MANAGER:
            check_figure_path(output)
        if methods is None:
            names, counterpart = compared_allocators(plan.job, allocators)
            variants = list_variants(plan, names, seeds, "allocator")
        else:
            counterpart = ""
            variants = list_variants(plan, [name.strip() for name in methods.split(",")], seeds, "method")
        variants = variants if out is None else list(recorded_in(out, variants))
    if starts_ranks(virtual):
        start_ranks([variant.plan for variant in variants])
    if virtual:
        for variant in variants:
            variant.plan.parts()  # rejects a wrong one before time is spent on the others
    if counterpart and launch.rank() == MANAGER:
        show(f"Note: gta is left out: its counterpart here is the method {counterpart}", err=True)
    launch.take_job_age()  # no run of a comparison pays for the start of all
    outcomes: list[Outcome] = []
    failure: BaseException | None = None
    try:
        outcomes.extend(run_variants(variants, virtual))
    except (RunError, KeyboardInterrupt) as error:
        failure = error
    if outcomes:  # on the manager
        rows = [variant.row(outcome) for variant, outcome in zip(variants, outcomes, strict=False)]
        if output is not None:
            draw(variants, outcomes, output)
        show(json.dumps(rows) if as_json else comparison_table(rows, billed=not virtual))
        if output is not None and not as_json:
            show(f"wrote {output}")
    if failure is not None:
        raise failure
    check_complete(variants, outcomes)


def compared_allocators(job: Job, allocators: str | None) -> tuple[list[str], str]:
    """Return the allocators to compare, and the method to use instead of gta if that is left out."""
    if allocators is not None:
        return [name.strip() for name in allocators.split(",")], ""
    own, counterpart = str(job.tables.get("allocator", {}).get("name", "own")), greedy_counterpart(job)
    names = dict.fromkeys(own if name == "own" else name for name in DEFAULT.split(","))
    if counterpart:
        names.pop("gta", None)
    return list(names), counterpart


def list_variants(plan: Plan, names: Sequence[str], seeds: int, kind: str) -> list[Variant]:
    """Return the runs of a comparison: seed by seed, so that one that is interrupted compares the same."""
    first = plan.job.run.seed
    return [
        Variant(name, seed if seeds > 1 else None, variant, kind)
        for seed in range(first, first + seeds)
        for name, variant in zip(names, plan.with_seed(seed).with_each(kind, names), strict=True)
    ]


def recorded_in(folder: Path, variants: Sequence[Variant]) -> Iterator[Variant]:
    """Yield the runs, each recorded in a file of this folder that does not exist yet."""
    names = [variant.named("-") for variant in variants]
    for name, variant in zip(names, variants, strict=True):
        if names.count(name) > 1:
            rule = "but --out has one run file for each"
            raise UsageError(
                f"--{variant.kind}s names {variant.allocator!r} more than once, {rule}; name it once"
            )
        file = RunFile(folder / f"{name}.h5")
        if launch.rank() == MANAGER:
            OutputOptions(file.path).check()
        yield variant._replace(plan=replace(variant.plan, file=file))


def run_variants(variants: Sequence[Variant], virtual: bool) -> Iterator[Outcome]:
    """Run one after another, until one is interrupted; nothing is returned on the rank of a worker."""
    for variant in variants:
        outcome = execute_with_progress(variant.plan, virtual, f"{variant.named(', seed ')}: ")
        if outcome is not None:
            yield outcome
            if outcome.reason is None:
                return


def draw(variants: Sequence[Variant], outcomes: Sequence[Outcome], output: Path) -> None:
    """Draw the runs of a comparison; what that needs is imported by the manager alone."""
    from mpi_ata.view.plots import PlottedRun, draw_runs, with_metrics

    runs = []
    for variant, outcome in zip(variants, outcomes, strict=False):
        trace = outcome.trace
        history = with_metrics(trace.history(), trace.metric_columns())
        runs.append(PlottedRun(variant.allocator, history, trace.cores or None))
    draw_runs(runs, output)


def check_complete(variants: Sequence[Variant], outcomes: Sequence[Outcome]) -> None:
    """Report a comparison that was interrupted."""
    if not outcomes or outcomes[-1].reason is not None:
        return
    last = outcomes[-1]
    left = ", ".join(variant.allocator for variant in variants[len(outcomes) :])
    where = f"interrupted in {variants[len(outcomes) - 1].allocator} at round {last.trace.round:,}"
    raise reported(click.ClickException(where + (f"; not run: {left}" if left else "")))
