"""The command that writes parts of a run file for other programs."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import numpy as np

from mpi_ata.cli.options import errors_in_one_sentence, show
from mpi_ata.errors import UsageError
from mpi_ata.runfile.load import SavedRun, load

Target = click.Path(path_type=Path, dir_okay=False)


@click.command(name="export")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--x", "point", type=Target, help="Write the point to this file, for numpy.load.")
@click.option("-o", "--history", type=Target, help="Write the history to this file, as CSV.")
@click.option("--workers", type=Target, help="Write the table of workers to this file, as CSV.")
@errors_in_one_sentence
def export_command(run: Path, point: Path | None, history: Path | None, workers: Path | None) -> None:
    """Write parts of a run file for other programs.

    Without options, prints the history as CSV.

    \b
    Examples:
      mpi-ata export runs/mine.h5 --x x.npy
      mpi-ata export runs/mine.h5 -o history.csv
      mpi-ata export runs/mine.h5 --workers workers.csv
    """
    saved = load(run)
    if point is not None:
        write(point, npy_bytes(saved))
    if history is not None:
        write(history, history_csv(saved).encode())
    if workers is not None:
        write(workers, workers_csv(saved).encode())
    if point is history is workers is None:
        show(history_csv(saved).rstrip())


def npy_bytes(run: SavedRun) -> bytes:
    """Return the point as numpy writes it."""
    target = io.BytesIO()
    np.save(target, run.x, allow_pickle=False)
    return target.getvalue()


def history_csv(run: SavedRun) -> str:
    """Return the history as CSV: its columns, and then the metrics of the problem."""
    metrics = run.metrics.items()
    own = {f"evaluation.{name}" if name in run.history else name: column for name, column in metrics}
    columns = run.history | own
    return csv_text(list(columns), zip(*(column.tolist() for column in columns.values()), strict=True))


def workers_csv(run: SavedRun) -> str:
    """Return the table of workers as CSV."""
    return csv_text(list(run.workers[0]), (row.values() for row in run.workers))


def csv_text(header: list[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV; what is not known is empty."""
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(["" if value is None or value != value else value for value in row] for row in rows)
    return target.getvalue()


def write(path: Path, data: bytes) -> None:
    """Write a file, and say so."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; choose another file") from None
    click.echo(f"wrote {path}", err=True)
