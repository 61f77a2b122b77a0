"""The commands for Slurm."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from mpi_ata.cli.options import errors_in_one_sentence, prior_options, show
from mpi_ata.view.slurm import status_table, submission_text


@click.command(name="submit")
@click.argument("job", type=click.Path(path_type=Path))
@click.option("--nodes", "-N", type=click.IntRange(min=1), help="Nodes.")
@click.option("--ntasks", "-n", type=click.IntRange(min=1), help="Ranks in all: the manager and the workers.")
@click.option("--ntasks-per-node", type=click.IntRange(min=1), help="Ranks on each node.")
@click.option("--cpus-per-task", "-c", type=click.IntRange(min=1), help="Cores of each rank.")
@click.option("--time", "-t", help="Time limit of each start, such as 02:00:00.")
@click.option("--partition", "-p")
@click.option("--account", "-A")
@click.option("--gpus-per-task", help="GPUs of each rank; the manager uses none.")
@click.option("--sbatch", "more", multiple=True, metavar="OPTION", help="Any further option of sbatch's.")
@click.option(
    "--set", "settings", multiple=True, metavar="TABLE.KEY=VALUE", help="Override a key of the job."
)
@click.option(
    "--array",
    "sweep",
    multiple=True,
    metavar="TABLE.KEY=V,V,...",
    help="Run once for each value, or for all combinations, where given several times.",
)
@click.option("--at-once", type=click.IntRange(min=1), help="So many runs of --array at the same time.")
@click.option("--chain", type=click.IntRange(min=1), help="So many Slurm jobs, each going on from the last.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="The run file; a fresh name in runs/ by default."
)
@click.option("--resume", is_flag=True, help="Go on with the run in --out, if it exists.")
@prior_options
@click.option("--signal", default="USR1", show_default=True, help="The signal that tells a run to save.")
@click.option("--lead", type=click.IntRange(min=1), help="Seconds before the time limit at which it comes.")
@click.option(
    "--source", type=click.Path(path_type=Path), help="A shell file to read first, say with `module load`."
)
@click.option("--no-check", is_flag=True, help="Do not build the problem here: its data are on the nodes.")
@click.option("--dry-run", is_flag=True, help="Print script and command, and do nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on the last line.")
@errors_in_one_sentence
def submit_command(
    job: Path,
    sweep: tuple[str, ...],
    at_once: int | None,
    no_check: bool,
    dry_run: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Give a job to Slurm; it is requeued and goes on by itself until it is finished.

    Job and problem files are copied: editing them afterwards changes nothing.

    \b
    Examples:
      mpi-ata submit jobs/emulated.toml --nodes 4 --ntasks-per-node 8 --time 02:00:00
      mpi-ata submit jobs/emulated.toml -N 4 -n 32 --sbatch "--constraint=fast" --dry-run
      mpi-ata submit jobs/emulated.toml -n 32 --warm-start runs/ --json
      mpi-ata submit jobs/emulated.toml -n 32 --array allocator.budget=8,16,32 --at-once 2
      mpi-ata submit jobs/emulated.toml -n 32 --time 30 --chain 4
    """
    from mpi_ata import slurm

    names = ("nodes", "ntasks", "ntasks_per_node", "cpus_per_task", "time", "partition", "account")
    resources = slurm.Resources(**{name: given.pop(name) for name in (*names, "gpus_per_task", "more")})
    members = slurm.Sweep.of(sweep, at_once) if sweep else None
    submission = slurm.Submission(job, resources, sweep=members, check=not no_check, **given)
    result = slurm.submit(submission, dry_run)
    if not resources.sized:
        told = f"no --ntasks was given: it is {result['ranks']}, for run.workers of the job and the manager"
        click.echo(told, err=True)
    show(json.dumps(result) if as_json else submission_text(result))


@click.command(name="status")
@click.argument("which", required=False, metavar="[JOBID|RUN.h5]")
@click.option("--json", "as_json", is_flag=True, help="Print all rows as a JSON list on the last line.")
@errors_in_one_sentence
def status_command(which: str | None, as_json: bool) -> None:
    """Tell how far submitted runs are: those in runs/ and in the queue, or one of them.

    Where Slurm does not answer, runs that are not finished are of state `unknown`, and the exit code is 1.

    \b
    Examples:
      mpi-ata status 1234 --json
      mpi-ata status
      mpi-ata status runs/mine.h5
    """
    from mpi_ata import slurm

    try:
        rows = slurm.status(which)
    except slurm.SilentError:
        rows = slurm.status_from_files(which)
        if rows or as_json:
            show(json.dumps(rows) if as_json else status_table(rows))
        raise
    show(json.dumps(rows) if as_json else status_table(rows))


@click.command(name="stop")
@click.argument("which", metavar="JOBID|RUN.h5")
@click.option("--json", "as_json", is_flag=True, help="Print all rows as a JSON list on the last line.")
@errors_in_one_sentence
def stop_command(which: str, as_json: bool) -> None:
    """End a submitted run for good: it is saved, and not started again.

    Go on with it later by `mpi-ata submit JOB.toml --out RUN.h5 --resume`.

    \b
    Examples:
      mpi-ata stop 1234
      mpi-ata stop runs/mine.h5
    """
    from mpi_ata import slurm

    rows = slurm.stop(which)
    show(json.dumps(rows) if as_json else status_table(rows))


@click.command(name="batch")
@click.argument("job", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), help="The run file; by default named after the Slurm job."
)
@click.option("--kept", type=click.Path(path_type=Path), help="What mpi-ata submit has prepared.")
@click.option(
    "--set", "settings", multiple=True, metavar="TABLE.KEY=VALUE", help="Override a key of the job."
)
@prior_options
@click.option("--siblings", is_flag=True, help="Learn speeds from finished runs of the same sweep.")
@click.option("--requeue/--no-requeue", default=True, help="Whether Slurm may start the job again.")
@click.option("--signal", default="USR1", show_default=True, help="The signal that tells a run to save.")
@click.option("--lead", type=click.IntRange(min=1), help="Seconds before the time limit to send it.")
@errors_in_one_sentence
def batch_command(
    job: Path,
    out: Path | None,
    kept: Path | None,
    settings: tuple[str, ...],
    **options: Any,
) -> None:
    """What a batch script calls: run a job until it is finished, through time limits and preemption.

    Begin the line with `exec`, so that the signals of Slurm's come through; slurm/run.sbatch is an example.

    \b
    Examples:
      mpi-ata batch jobs/emulated.toml
      mpi-ata batch jobs/emulated.toml --set allocator.budget=16 --warm-start runs/
    """
    from mpi_ata import slurm

    batch = slurm.prepared(job, out, kept, settings, **options)
    sys.exit(slurm.carry_out(batch, partial(click.echo, err=True)))
