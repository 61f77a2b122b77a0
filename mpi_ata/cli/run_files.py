"""The commands that list run files, remove old ones, and write parts of them for other programs."""

import csv
import io
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from mpi_ata.cli.options import PATH, json_option, run_argument, show
from mpi_ata.errors import RunError, UsageError
from mpi_ata.runfile.checkpoints import RUNS
from mpi_ata.runfile.load import SavedRun, load, load_record
from mpi_ata.runfile.progress import ListedRun, beyond, list_runs, remove_run
from mpi_ata.runfile.store import RunFile, is_run_file
from mpi_ata.torch.devices import import_torch
from mpi_ata.torch.model import completed, read_weights, weights_of, write_weights
from mpi_ata.view.text import duration, file_size, table

HEADER = ["run", "job", "state", "rounds", "age", "size"]


@click.command(name="runs")
@click.argument("folder", type=PATH, required=False)
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    help="Remove the oldest finished runs beyond this many; asks before, and keeps submitted ones.",
)
@click.option("--yes", is_flag=True, help="Remove them without asking.")
@json_option
def runs_command(folder: Path | None, keep: int | None, yes: bool, as_json: bool) -> None:
    """List the run files in runs/, or in another folder.

    \b
    Examples:
      mpi-ata runs results/monday --json
      mpi-ata runs
      mpi-ata runs --keep 20
    """
    if yes and keep is None:
        raise UsageError("--yes only applies with --keep")
    folder = existing(folder)
    runs = list_runs(folder)
    if keep is not None:
        runs = remove_old(beyond(keep, runs, submitted(folder)), yes)
    if as_json:
        show(json.dumps([run._asdict() for run in runs], default=str))
    elif keep is None:
        show(runs_table(runs) if runs else f"there are no run files in {folder}")


def existing(folder: Path | None) -> Path:
    """Return the folder to list; reject one that the user named and that does not exist."""
    if folder is not None and not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise UsageError(f"{folder} {what}; name a folder with run files, or none for {RUNS}/")
    return folder or RUNS


def remove_old(old: Sequence[ListedRun], yes: bool) -> list[ListedRun]:
    """Remove runs, if the user agrees, and print what is removed; return those that were."""
    if not old:
        show("nothing to remove", err=True)
        return []
    show(runs_table(old), err=True)
    if not yes and not click.confirm(f"Remove these {len(old):,}?", err=True):
        show("nothing was removed", err=True)
        return []
    return [run for run in old if removed(run)]


def removed(run: ListedRun) -> bool:
    """Remove a run unless it is in use again, print which of the two, and return whether it was removed."""
    try:
        done = remove_run(run)
    except OSError as error:
        raise RunError(f"{run.path} cannot be removed: {error.strerror}") from None
    show(f"removed {run.path}" if done else f"kept {run.path}, which was saved just now", err=True)
    return done


def submitted(folder: Path) -> set[Path]:
    """Return the runs in a folder that mpi-ata submit knows: their folders refer to them."""
    from mpi_ata.batch.submission_dir import find_submissions

    return {run for each in find_submissions(folder) for run in each.manifest().runs}


def runs_table(runs: Sequence[ListedRun]) -> str:
    """Return one row per run file."""
    rows = []
    for run in runs:
        age, size = duration(max(0.0, time.time() - run.saved)), file_size(run.size)
        rows.append([run.path.name, run.job or "-", run.state, f"{run.rounds:,}", age, size])
    return table(rows, HEADER)


SHOWN = 3  # names in a note

Table = dict[str, list[Any]]  # columns by name
Target = click.Path(path_type=Path, dir_okay=False)


@click.command(name="export")
@run_argument
@click.option("--x", "point", type=Target, help="Write the point to this file, for numpy.load.")
@click.option("-o", "--history", type=Target, help="Write the history to this file: .csv, or .parquet.")
@click.option("--workers", type=Target, help="Write the table of workers to this file: .csv, or .parquet.")
@click.option("--weights", type=Target, help="Write the state_dict of a PyTorch model to this file: .pt.")
@click.option("--averaged", is_flag=True, help="With --weights: the running mean of the weights (ema).")
@click.option("--base", type=Target, help="With --weights: take what was not trained from this state_dict.")
def export_command(
    run: Path,
    point: Path | None,
    history: Path | None,
    workers: Path | None,
    weights: Path | None,
    averaged: bool,
    base: Path | None,
) -> None:
    """Write parts of a run file for other programs.

    Without options, prints the history as CSV.

    \b
    Examples:
      mpi-ata export runs/mine.h5 --x x.npy
      mpi-ata export runs/mine.h5 -o history.csv
      mpi-ata export runs/mine.h5 -o history.parquet --workers workers.parquet
      mpi-ata export runs/mine.h5 --weights w.pt
    """
    for target in filter(None, (point, history, workers, weights)):
        if is_run_file(target):
            raise UsageError(f"{target} is a run file, and is not overwritten; choose another file")
    if weights is None and (averaged or base is not None):
        raise UsageError(f"{'--averaged' if averaged else '--base'} needs --weights FILE.pt")
    saved = load(run)
    for path, columns in ((history, history_columns), (workers, worker_columns)):
        if path is not None:
            write_table(columns(saved), path)
    if point is not None:  # last, since it may be rejected
        write(point, npy_bytes(saved, run))
    if weights is not None:
        export_weights(run, weights, averaged, base)
    if point is history is workers is weights is None:
        show(csv_text(history_columns(saved)).rstrip())


def export_weights(run: Path, target: Path, averaged: bool, base: Path | None) -> None:
    """Write the model's own state_dict, and note what of it the run file does not have."""
    record, _ = load_record(RunFile(run))  # load() has warned if it is not the newest save
    import_torch()
    found, missing = weights_of(record.method, averaged)
    if base is not None:
        found, missing = completed(found, missing, read_weights(base))
    write_weights(found, target)
    show(f"wrote {target}", err=True)
    if missing:
        names = ", ".join(missing[:SHOWN]) + (f" and {len(missing) - SHOWN} more" if missing[SHOWN:] else "")
        show(
            f"note: {run} does not have what the run did not train: {names}; add it with --base FILE.pt, or "
            "use load_state_dict(..., strict=False)",
            err=True,
        )


def npy_bytes(run: SavedRun, path: Path) -> bytes:
    """Return the point as numpy writes it."""
    target = io.BytesIO()
    try:
        np.save(target, run.x, allow_pickle=False)
    except ValueError:  # with `map` it may be anything
        raise UsageError(f"--x: x is not one array; use mpi_ata.load({str(path)!r}).x in Python") from None
    return target.getvalue()


def history_columns(run: SavedRun) -> Table:
    """Return the columns of the history, and then the metrics of the problem."""
    metrics = run.metrics.items()
    own = {f"evaluation.{name}" if name in run.history else name: column for name, column in metrics}
    return {name: column.tolist() for name, column in (run.history | own).items()}


def worker_columns(run: SavedRun) -> Table:
    """Return the columns of the table of workers."""
    numbers = {"worker": list(range(len(run.workers)))}
    return numbers | {name: [row[name] for row in run.workers] for name in run.workers[0]}


def write_table(columns: Table, path: Path) -> None:
    """Write a table in the format that the name of its file says."""
    if path.suffix not in (".csv", ".parquet"):
        raise UsageError(f"{path}: the name of a table must end in .csv or .parquet")
    write(path, parquet_bytes(columns) if path.suffix == ".parquet" else csv_text(columns).encode())


def csv_text(columns: Table) -> str:
    """Return a table as CSV; what is not known is empty."""
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        writer.writerow("" if value is None or value != value else value for value in row)
    return target.getvalue()


def parquet_bytes(columns: Table) -> bytes:
    """Return a table as Parquet; what is not known is null."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        way_out = "use pip install 'mpi-ata[parquet]', or write .csv"
        raise UsageError(f"a .parquet file needs pyarrow, which is not installed; {way_out}") from None
    target = io.BytesIO()
    known = {name: pyarrow.array(column, from_pandas=True) for name, column in columns.items()}
    parquet.write_table(pyarrow.table(known), target)
    return target.getvalue()


def write(path: Path, data: bytes) -> None:
    """Write a file, and say so."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; choose another file") from None
    show(f"wrote {path}", err=True)
