"""Reading run files: for the package, and for users."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpi_ata.arrays import Array, State
from mpi_ata.errors import DamagedError
from mpi_ata.runfile.describe import describe
from mpi_ata.runfile.record import Record
from mpi_ata.runfile.schema import from_tree
from mpi_ata.runfile.store import RunFile

log = logging.getLogger("mpi_ata")


@dataclass(frozen=True)
class SavedRun:
    """What a run file holds, as plain values and arrays."""

    x: Array  # the point
    summary: dict[str, Any]  # rounds, clock, worker_time, loss, ... and whether it is finished
    history: State  # one array per column: round, clock, worker_time, loss, ...
    metrics: State  # what the problem's evaluate(x) returned, one array per name, in the rows of `history`
    workers: list[dict[str, Any]]  # host, hardware, tasks, mean, spread, ... of each worker
    hosts: list[dict[str, Any]]  # how each compares with its peers, and what went wrong on it
    events: list[dict[str, Any]]
    job: str  # the text of the job file
    settings: list[str]  # what --set changed


def load(path: str | Path) -> SavedRun:
    """Read a run file: its newest intact save."""
    record, complaint = load_named(RunFile(Path(path)))
    if complaint:
        log.warning("%s", complaint)
    described = describe(record)
    apart = {name: described.pop(name) for name in ("workers_table", "hosts", "events", "job", "settings")}
    metrics = {name: column for name, column in record.metrics.items() if not name.startswith("latest.")}
    return SavedRun(
        x=record.method["x"],
        summary=described,
        history=record.trace,
        metrics=metrics,
        workers=apart["workers_table"],
        hosts=apart["hosts"],
        events=apart["events"],
        job=apart["job"],
        settings=apart["settings"],
    )


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
