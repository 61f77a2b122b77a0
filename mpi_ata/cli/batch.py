"""The commands for batch jobs, which Slurm runs."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from mpi_ata.batch.inside import BatchJob, run_batch
from mpi_ata.batch.interface import Resources, SchedulerUnreachableError
from mpi_ata.batch.status import status, stop
from mpi_ata.batch.submit import Submission, Sweep, submit
from mpi_ata.cli.options import (
    PATH,
    array_options,
    jobs_argument,
    json_option,
    lead_options,
    output_options,
    passed_as,
    price_option,
    prior_options,
    set_option,
    show,
)
from mpi_ata.driver.jobs import specify_jobs
from mpi_ata.errors import UsageError
from mpi_ata.view.recommend import recommend, recommended_size
from mpi_ata.view.summaries import status_table, submission_text


@click.command(name="submit")
@jobs_argument
@click.option("--nodes", "-N", type=click.IntRange(min=1), help="Number of nodes.")
@click.option("--ntasks", "-n", type=click.IntRange(min=1), help="Number of ranks: manager and workers.")
@click.option("--ntasks-per-node", type=click.IntRange(min=1), help="Ranks per node.")
@click.option("--cpus-per-task", "-c", type=click.IntRange(min=1), help="Cores per rank.")
@click.option("--time", "-t", help="Time limit of each start, such as 02:00:00.")
@click.option("--partition", "-p", help="Partition to submit to.")
@click.option("--account", "-A", help="Account to charge.")
@click.option("--gpus-per-task", help="GPUs per rank; the manager leaves its own idle.")
@click.option("--sbatch", "more", multiple=True, metavar="OPTION", help="Any other sbatch option.")
@click.option(
    "--and",
    "components",
    multiple=True,
    metavar="OPTIONS",
    help="sbatch options of another kind of node, in the same heterogeneous Slurm job; may be repeated.",
)
@set_option
@array_options
@click.option("--shared", is_flag=True, help="Let the runs of --array share the ranks of one Slurm job.")
@click.option(
    "--chain",
    type=click.IntRange(min=1),
    help="Submit this many Slurm jobs, each resuming the one before, instead of requeueing.",
)
@output_options
@click.option(
    "--exclude-slow",
    multiple=True,
    type=PATH,
    help="Avoid hosts that were slow, flaky or lost in a run file, or in a folder of them; may be repeated.",
)
@click.option(
    "--recommended",
    multiple=True,
    type=PATH,
    help="Ask for as many nodes as mpi-ata recommend calls best by a run file; may be repeated.",
)
@price_option
@lead_options
@click.option(
    "--source",
    type=PATH,
    help="A shell file to source first, for instance with `module load`.",
)
@click.option("--no-check", is_flag=True, help="Do not build the problem here: its data is on the nodes.")
@click.option("--dry-run", is_flag=True, help="Print the script and the command, and do nothing else.")
@json_option
@passed_as("resources", Resources)
def submit_command(
    jobs: tuple[Path, ...],
    args: tuple[str, ...],
    resources: Resources,
    array: tuple[str, ...],
    at_once: int | None,
    shared: bool,
    recommended: tuple[Path, ...],
    price: float,
    no_check: bool,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Submit a job or a script to Slurm, until it is finished.

    Job and problem files are copied: editing them afterwards changes nothing.  Several jobs share the ranks
    of one Slurm job; the runs of --array have one each, unless --shared is given.

    A script that uses Pool, cluster, minimize or Trainer is recorded in --out and resumed, whatever it says
    itself; what follows it are its arguments, after -- if they begin with a dash.

    \b
    Examples:
      mpi-ata submit jobs/emulated.toml --nodes 4 --ntasks-per-node 8 --time 02:00:00
      mpi-ata submit jobs/emulated.toml -N 4 -n 32 --sbatch "--constraint=fast" --dry-run
      mpi-ata submit jobs/emulated.toml -N 1 -n 3 --and "--nodes=2 --ntasks=8 --constraint=a100"
      mpi-ata submit jobs/emulated.toml -n 32 --warm-start runs/ --json
      mpi-ata submit jobs/emulated.toml -N 4 -n 32 --exclude-slow runs/mine.h5
      mpi-ata submit jobs/emulated.toml --recommended runs/mine.h5 --price 2
      mpi-ata submit jobs/emulated.toml -n 32 --array allocator.budget=8,16,32 --at-once 2
      mpi-ata submit jobs/emulated.toml -n 32 --array run.seed=1,2,3,4 --shared
      mpi-ata submit jobs/emulated.toml -n 32 --time 30 --chain 4
      mpi-ata submit -n 5 --array seed=1,2,3 jobs/farm.py
    """
    if shared and not array:
        raise UsageError("--shared requires --array; several jobs share ranks anyway")
    if shared or len(jobs) > 1:
        options |= {"array": array, "at_once": at_once}
    elif array:
        options["sweep"] = Sweep.of(array, at_once, of_script=jobs[0].suffix == ".py")
    if recommended:
        runs = len(specify_jobs(jobs, options["settings"], array)) if "array" in options else 1
        resources = with_recommended(resources, recommended, runs, price)
    submission = Submission(jobs, resources, args=args, check=not no_check, **options)
    result = submit(submission, dry_run)
    for note in result["notes"]:
        show(note, err=True)
    show(json.dumps(result) if as_json else submission_text(result))


def with_recommended(resources: Resources, runs: tuple[Path, ...], jobs: int, price: float) -> Resources:
    """Return resources with as many nodes and ranks as are best for so many jobs, by what runs know."""
    if resources.ranks is not None or resources.nodes is not None:
        raise UsageError("--recommended chooses the nodes and ranks: leave out --nodes and --ntasks")
    shared = jobs == len(runs) > 1
    answer = recommend(runs, shared, copies=1 if shared else jobs, price=price)
    best, ranks = recommended_size(answer), answer["ranks_per_node"]
    show(f"recommended: {best['nodes']} nodes with {ranks} ranks each; see mpi-ata recommend", err=True)
    return replace(resources, nodes=best["nodes"], ntasks_per_node=ranks)


@click.command(name="status")
@click.argument("which", required=False, metavar="[JOBID|RUN.h5]")
@json_option
def status_command(which: str | None, as_json: bool) -> None:
    """Print the progress of submitted runs.

    Lists all runs in runs/ and in the queue, or only the one you name. If Slurm does not answer,
    the state of unfinished runs is `unknown`, and the exit code is 1.

    \b
    Examples:
      mpi-ata status 1234 --json
      mpi-ata status
      mpi-ata status runs/mine.h5
    """
    try:
        rows = status(which)
    except SchedulerUnreachableError:
        rows = status(which, ask=False)
        if rows or as_json:
            show(json.dumps(rows) if as_json else status_table(rows))
        raise
    show(json.dumps(rows) if as_json else status_table(rows))


@click.command(name="stop")
@click.argument("which", metavar="JOBID|RUN.h5")
@json_option
def stop_command(which: str, as_json: bool) -> None:
    """Save a submitted run and end it for good.

    It is not requeued. Resume it later with `mpi-ata submit JOB.toml --out RUN.h5 --resume`.

    \b
    Examples:
      mpi-ata stop 1234
      mpi-ata stop runs/mine.h5
    """
    rows = stop(which)
    show(json.dumps(rows) if as_json else status_table(rows))


@click.command(name="batch")
@jobs_argument
@click.option("--out", type=PATH, help="The run file.  [default: named after the Slurm job]")
@click.option("--submission-dir", type=PATH, help="The folder that mpi-ata submit has prepared.")
@set_option
@array_options
@prior_options
@click.option("--siblings", is_flag=True, help="Warm-start from finished runs of the same sweep.")
@click.option("--requeue/--no-requeue", default=True, help="Whether Slurm may requeue the job.")
@lead_options
@passed_as("batch_job", BatchJob)
def batch_command(batch_job: BatchJob) -> None:
    """Run a job inside a batch script until it is finished.

    The run survives time limits and preemption. Begin the line with `exec`, so that mpi-ata receives
    Slurm's signals; slurm/run.sbatch is an example.

    \b
    Examples:
      mpi-ata batch jobs/emulated.toml
      mpi-ata batch jobs/emulated.toml --set allocator.budget=16 --warm-start runs/
    """
    sys.exit(run_batch(batch_job))
