"""The command that lists run files, and removes old ones."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

import click

from mpi_ata.cli.options import errors_in_one_sentence, show
from mpi_ata.errors import RunError, UsageError
from mpi_ata.runfile.checkpoints import RUNS
from mpi_ata.runfile.listing import ListedRun, beyond, list_runs, remove_run
from mpi_ata.view.text import duration, file_size, table

HEADER = ["run", "job", "state", "rounds", "age", "size"]


@click.command(name="runs")
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    help="Remove the oldest finished runs beyond this many; asks before, and keeps submitted ones.",
)
@click.option("--yes", is_flag=True, help="Remove them without asking.")
@click.option("--json", "as_json", is_flag=True, help="Print all rows as a JSON list on the last line.")
@errors_in_one_sentence
def runs_command(folder: Path | None, keep: int | None, yes: bool, as_json: bool) -> None:
    """List the run files in a folder, by default in runs/.

    \b
    Examples:
      mpi-ata runs results/monday --json
      mpi-ata runs
      mpi-ata runs --keep 20
    """
    if yes and keep is None:
        raise UsageError("--yes is about --keep, but there is none; add one")
    folder = existing(folder)
    runs = list_runs(folder)
    if keep is None:
        show(json.dumps([as_row(run) for run in runs]) if as_json else runs_table(runs, folder))
        return
    gone = remove_old(beyond(keep, runs, submitted(folder)), yes)
    if as_json:
        show(json.dumps([as_row(run) for run in gone]))


def existing(folder: Path | None) -> Path:
    """Return the folder to list; reject one that the user named and that does not exist."""
    if folder is not None and not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise UsageError(f"{folder} {what}; name a folder with run files, or none for {RUNS}/")
    return folder or RUNS


def remove_old(old: Sequence[ListedRun], yes: bool) -> Sequence[ListedRun]:
    """Remove runs, if the user agrees, and print what is removed; return those that were."""
    if not old:
        click.echo("nothing to remove", err=True)
        return ()
    click.echo(table([cells(run) for run in old], HEADER), err=True)
    if not yes and not click.confirm(f"Remove these {len(old):,}?", err=True):
        click.echo("nothing was removed", err=True)
        return ()
    return [run for run in old if removed(run)]


def removed(run: ListedRun) -> bool:
    """Remove a run unless it is in use again, print which of the two, and return whether it was removed."""
    try:
        done = remove_run(run)
    except OSError as error:
        raise RunError(f"{run.path} cannot be removed: {error.strerror}") from None
    click.echo(f"removed {run.path}" if done else f"kept {run.path}, which was saved just now", err=True)
    return done


def submitted(folder: Path) -> set[Path]:
    """Return the runs in a folder that mpi-ata submit knows: their folders refer to them."""
    from mpi_ata.slurm.submission_dir import find_submissions

    return {run for each in find_submissions(folder) for run in each.manifest().runs}


def runs_table(runs: Sequence[ListedRun], folder: Path) -> str:
    """Return one row per run file."""
    return table([cells(run) for run in runs], HEADER) if runs else f"there are no run files in {folder}"


def cells(run: ListedRun) -> list[str]:
    """Return a run file as texts."""
    age = duration(max(0.0, time.time() - run.saved))
    return [run.path.name, run.job or "-", run.state, f"{run.rounds:,}", age, file_size(run.size)]


def as_row(run: ListedRun) -> dict[str, object]:
    """Return a run file as plain values."""
    return run._asdict() | {"path": str(run.path)}
