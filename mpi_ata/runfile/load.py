"""Reading run files: for the package, and for users."""

import logging
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.errors import DamagedError
from mpi_ata.named_arrays import from_state
from mpi_ata.runfile.describe import describe
from mpi_ata.runfile.frames import Columns, Rows
from mpi_ata.runfile.record import Record
from mpi_ata.runfile.schema import from_tree
from mpi_ata.runfile.store import RunFile

log = logging.getLogger("mpi_ata")

COLUMNS: tuple[str, ...] = ("round", "clock", "elapsed", "worker_time", "waste", "started", "used", "wasted")
COLUMNS += ("lost", "loss", "gap", "regret", "mean_delay", "largest_delay")


@dataclass(frozen=True, repr=False)
class SavedRun:
    """What a run file holds, as plain values and arrays."""

    x: Any  # the point: an array, or whatever combine(x, results) returned last
    summary: dict[str, Any]  # rounds, clock, worker_time, loss, ... and whether it is finished
    history: Columns  # one array per column: round, clock, worker_time, loss, ...; it has to_pandas()
    metrics: Columns  # what the problem's evaluate(x) returned, one array per name, in the rows of `history`
    workers: Rows  # host, hardware, tasks, mean, spread, ... of each worker; it has to_pandas()
    hosts: Rows  # how each compares with its peers, and what went wrong on it
    events: Rows  # what happened besides the rounds: time, worker, kind, text, host
    job: str  # the text of the job file, or the settings of a script
    settings: list[str]  # what --set changed

    def __repr__(self) -> str:
        ended = f"finished at {self.summary['reason']}" if self.summary["finished"] else "not finished"
        parts = ", ".join(field.name for field in fields(self))
        return f"<SavedRun: {self.summary['rounds']:,} rounds, {ended}; it has {parts}>"


def load(path: str | Path) -> SavedRun:
    """Read a run file: its newest intact save."""
    record, complaint = load_named(RunFile(Path(path)))
    if complaint:
        log.warning("%s", complaint)
    described = describe(record)
    apart = {name: described.pop(name) for name in ("workers_table", "hosts", "events", "job", "settings")}
    metrics = {name: column for name, column in record.metrics.items() if not name.startswith("latest.")}
    return SavedRun(
        x=_point(record, path),
        summary=described,
        history=Columns({name: _column(record, name) for name in sorted(record.trace, key=_position)}),
        metrics=Columns(metrics),
        workers=Rows(apart["workers_table"]),
        hosts=Rows(apart["hosts"]),
        events=Rows(apart["events"]),
        job=apart["job"],
        settings=apart["settings"],
    )


def _column(record: Record, name: str) -> Array:
    """Return a column of the history; where nothing was delayed, the largest delay is not known either."""
    column: Array = record.trace[name]
    if name != "largest_delay":
        return column
    return np.where(np.isnan(record.trace["mean_delay"]), np.nan, column)


def _position(name: str) -> int:
    """Return where a column of the history stands."""
    return COLUMNS.index(name) if name in COLUMNS else len(COLUMNS)


def _point(record: Record, path: str | Path) -> Any:
    try:
        return from_state(record.method, "x")
    except ValueError as error:
        raise DamagedError(f"{path}: is not a complete run file: {error}") from None


def load_record(file: RunFile) -> tuple[Record, str]:
    """Return the record in a run file's newest intact save, and a complaint about a newer one that is not."""
    attributes, groups, complaint = file.load()
    try:
        return from_tree(attributes, groups), complaint
    except DamagedError as error:
        raise DamagedError(f"{file.path}: {error}") from None


def load_named(file: RunFile) -> tuple[Record, str]:
    """Return load_record() of a run that the user named; an error adds what to do."""
    try:
        return load_record(file)
    except DamagedError as error:
        if file.path.suffix == ".toml":
            raise DamagedError(f"{error}; run a job file with mpi-ata run {file.path}") from None
        raise DamagedError(f"{error}; restore a copy of it, or start a new run with another --out") from None
