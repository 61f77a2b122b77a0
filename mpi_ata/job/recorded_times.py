"""Recorded task times as a law: the sample in a run file, or a CSV file."""

from pathlib import Path

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.errors import UsageError
from mpi_ata.job.component import Component
from mpi_ata.job.tables import Table
from mpi_ata.job.values import checked
from mpi_ata.runfile.store import RunFile
from mpi_ata.times import Recorded
from mpi_ata.times.recorded import parse_samples

RECORDED = "recorded"  # the name of this law


def recorded_law(keys: Table, folder: Path) -> Component:
    """Return the law of the times that `run` or `file` names; they are read when it is built."""
    named = [key for key in ("run", "file") if key in keys]
    if len(named) != 1:
        raise UsageError(
            f"[times] law = '{RECORDED}' needs one of run = 'RUN.h5' and file = 'times.csv', not "
            f"{'both' if named else 'neither'}"
        )
    path = folder / checked("times", named[0], keys[named[0]], str)
    read = read_run if named[0] == "run" else read_csv

    def recorded(n: int) -> Recorded:
        samples = read(path)
        try:
            return Recorded(n, samples)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    return Component("times", recorded, {key: keys[key] for key in keys if key not in ("law", *named)})


def read_run(path: Path) -> list[Array]:
    """Return the task times that a run sampled of each of its workers."""
    _, groups, _ = RunFile(path).load()
    return recorded_samples(groups.get("workers", {}).get("times"), path)


def recorded_samples(times: Array | None, path: Path) -> list[Array]:
    """Return the sample of each worker's task times, of which a run file has one row each."""
    if times is None or times.ndim != 2 or times.dtype.kind != "f":
        raise UsageError(f"{path}: has no sample of task times; record one with this version of mpi_ata")
    return [row[~np.isnan(row)] for row in times]


def read_csv(path: Path) -> list[Array]:
    """Return the task times of each worker in a file with the columns worker and seconds."""
    try:
        return parse_samples(path.read_text())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # also of bytes that are no text
        raise UsageError(f"{path}: {error}") from None
