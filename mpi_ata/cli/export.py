"""The command that writes parts of a run file for other programs."""

import csv
import io
from pathlib import Path
from typing import Any

import click
import numpy as np

from mpi_ata.cli.options import errors_in_one_sentence, show
from mpi_ata.errors import UsageError
from mpi_ata.runfile.load import SavedRun, load, load_record
from mpi_ata.runfile.store import RunFile, is_run_file
from mpi_ata.torch.devices import import_torch
from mpi_ata.torch.exported import completed, weights_of
from mpi_ata.torch.weight_files import read_weights, write_weights

SHOWN = 3  # names in a note

Table = dict[str, list[Any]]  # columns by name
Target = click.Path(path_type=Path, dir_okay=False)


@click.command(name="export")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--x", "point", type=Target, help="Write the point to this file, for numpy.load.")
@click.option("-o", "--history", type=Target, help="Write the history to this file: .csv, or .parquet.")
@click.option("--workers", type=Target, help="Write the table of workers to this file: .csv, or .parquet.")
@click.option("--weights", type=Target, help="Write the state_dict of a PyTorch model to this file: .pt.")
@click.option("--averaged", is_flag=True, help="With --weights: the running mean of the weights (ema).")
@click.option("--base", type=Target, help="With --weights: take what was not trained from this state_dict.")
@errors_in_one_sentence
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
    for target in (point, history, workers, weights):
        check_target(target)
    if weights is None and (averaged or base is not None):
        raise UsageError(f"{'--averaged' if averaged else '--base'} needs --weights FILE.pt")
    saved = load(run)
    if history is not None:
        write(history, table_bytes(history_columns(saved), history))
    if workers is not None:
        write(workers, table_bytes(worker_columns(saved), workers))
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
    click.echo(f"wrote {target}", err=True)
    if missing:
        names = ", ".join(missing[:SHOWN]) + (f" and {len(missing) - SHOWN} more" if missing[SHOWN:] else "")
        click.echo(
            f"note: {run} does not have what the run did not train: {names}; add it with --base FILE.pt, or "
            "use load_state_dict(..., strict=False)",
            err=True,
        )


def check_target(path: Path | None) -> None:
    """Reject a file that is a run: it would be lost."""
    if path is not None and is_run_file(path):
        raise UsageError(f"{path} is a run file, and is not overwritten; choose another file")


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


def table_bytes(columns: Table, path: Path) -> bytes:
    """Return a table in the format that the name of its file says."""
    if path.suffix not in (".csv", ".parquet"):
        raise UsageError(f"{path}: the name of a table must end in .csv or .parquet")
    return parquet_bytes(columns) if path.suffix == ".parquet" else csv_text(columns).encode()


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
    click.echo(f"wrote {path}", err=True)
