"""Reading run files: for the package, for users, and in plain numbers and strings."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from mpi_ata.arrays import Array, State
from mpi_ata.errors import DamagedError, UsageError, command_line, prefix_errors
from mpi_ata.job.component import PROBLEMS
from mpi_ata.job.schema import RunDescription
from mpi_ata.job.tables import Table
from mpi_ata.packing import from_state
from mpi_ata.runfile.hosts import report_hosts
from mpi_ata.runfile.priors import RunStats, counted
from mpi_ata.runfile.schema import ALWAYS, MAYBE, HistoryRow, Record, from_tree
from mpi_ata.runfile.store import RunFile


class Columns(dict[str, Array]):
    """One array per column, by name."""

    def to_pandas(self) -> Any:
        """Return the columns as a pandas.DataFrame."""
        return _frame(dict(self))


class RowTable(list[dict[str, Any]]):
    """One dict per row."""

    def to_pandas(self) -> Any:
        """Return the rows as a pandas.DataFrame."""
        return _frame(list(self))


def _frame(table: object) -> Any:
    try:
        import pandas
    except ImportError:
        raise UsageError("to_pandas() needs pandas, which is not installed; use pip install pandas") from None
    return pandas.DataFrame(table)


log = logging.getLogger("mpi_ata")


@dataclass(frozen=True)
class SavedRun:
    """What a run file holds, as plain values and arrays."""

    x: Any  # the point: an array, or whatever combine(x, results) returned last
    summary: dict[str, Any]  # rounds, clock, worker_time, loss, ... and whether it is finished
    history: Columns  # one array per column: round, clock, worker_time, loss, ...; it has to_pandas()
    metrics: Columns  # what the problem's evaluate(x) returned, one array per name, in the rows of `history`
    workers: RowTable  # host, hardware, tasks, mean, spread, ... of each worker; it has to_pandas()
    hosts: RowTable  # how each compares with its peers, and what went wrong on it
    events: RowTable  # what happened besides the rounds: time, worker, kind, text, host
    job: str  # the text of the job file, or the settings of a script
    settings: list[str]  # what --set changed

    def __repr__(self) -> str:
        return brief(self)


def brief(run: Any) -> str:
    """Return a run in one line: how far it is, and what it has."""
    ended = "finished" if run.summary["finished"] else "not finished"
    parts = ", ".join(field.name for field in fields(run))
    return f"<{type(run).__name__}: {counted(run.summary['rounds'], 'round')}, {ended}; it has {parts}>"


def load(path: str | Path) -> SavedRun:
    """Read a run file: its newest intact save."""
    record, complaint = load_named(RunFile(Path(path)))
    if complaint:
        log.warning("%s", complaint)
    summary = describe(record)
    names = dict.fromkeys([*HistoryRow._fields, *record.trace])
    metrics = {name: column for name, column in record.metrics.items() if not name.startswith("latest.")}
    return SavedRun(
        x=_point(record, path),
        summary=summary,
        history=Columns({name: _column(record, name) for name in names if name in record.trace}),
        metrics=Columns(metrics),
        workers=RowTable(summary.pop("workers_table")),
        hosts=RowTable(summary.pop("hosts")),
        events=RowTable(summary.pop("events")),
        job=summary.pop("job"),
        settings=summary.pop("settings"),
    )


def _column(record: Record, name: str) -> Array:
    """Return a column of the history; where nothing was delayed, the largest delay is not known either."""
    column: Array = record.trace[name]
    if name != "largest_delay":
        return column
    return np.where(np.isnan(record.trace["mean_delay"]), np.nan, column)


def _point(record: Record, path: str | Path) -> Any:
    try:
        return from_state(record.method, "x")
    except ValueError as error:
        raise DamagedError(f"{path}: is not a complete run file: {error}") from None


def load_record(file: RunFile) -> tuple[Record, str]:
    """Return the record in a run file's newest intact save, and a complaint about a newer one that is not."""
    attributes, groups, complaint = file.load()
    with prefix_errors(f"{file.path}: "):
        return from_tree(attributes, groups), complaint


def load_named(file: RunFile) -> tuple[Record, str]:
    """Return load_record() of a run that the user named; an error adds what to do."""
    try:
        return load_record(file)
    except DamagedError as error:
        way_out = "restore a copy of it, or start a new run in another file"
        if file.path.suffix == ".toml":
            way_out = f"run a job file with {command_line('mpi-ata', 'run', file.path)}"
        raise DamagedError(f"{error}; {way_out}") from None


MAX_COMPLAINTS = 3  # about files of one folder that are reported one by one


class EarlierRuns:
    """Reads earlier runs; `notes` collects what the user should know of files left out."""

    def __init__(self, job: RunDescription | None, any_problem: str = "") -> None:
        self._job = job  # None: runs of any problem will do
        self._any_problem = any_problem  # the option that allows these
        self.notes: list[str] = []

    def read(self, paths: Iterable[Path]) -> Iterator[RunStats]:
        """Yield what each run in run files and folders learned itself, and from those before it."""
        for _, record in self.records(paths):
            yield from [*record.prior, record.source]

    def records(self, paths: Iterable[Path]) -> Iterator[tuple[Path, Record]]:
        """Yield the runs in run files and folders; in folders, files that do not fit are skipped."""
        for path in paths:
            yield from self._folder(path) if path.is_dir() else [(path, self._file(path))]

    def _folder(self, folder: Path) -> Iterator[tuple[Path, Record]]:
        complaints = list[str]()
        for file in run_files(folder):
            try:
                yield file, self._file(file)
            except UsageError as error:
                complaints.append(f"skipped: {error}")
        self.notes += complaints[:MAX_COMPLAINTS]
        if len(complaints) > MAX_COMPLAINTS:
            self.notes.append(f"skipped: {len(complaints) - MAX_COMPLAINTS:,} more files in {folder}")

    def _file(self, file: Path) -> Record:
        record, complaint = load_record(RunFile(file))
        if complaint:
            self.notes.append(complaint)
        if self._job is not None:
            _check_problem(file, record, self._job, self._any_problem)
        return record


def run_files(folder: Path) -> list[Path]:
    """Return the run files of a folder; one that was killed while being replaced has left its older save."""
    older = (file.with_suffix("") for file in folder.glob("*.h5.previous"))
    return sorted({*folder.glob("*.h5"), *older})


def _check_problem(file: Path, record: Record, job: RunDescription, any_problem: str) -> None:
    """Reject a run of another problem: its tasks take other times."""
    then, now = (_problem_keys(each) for each in (record.job, job))
    if then != now:  # what a job leaves out, a script describes by its default
        defaults = {"x0": now.get("x0", then.get("x0")), **job.defaults()}
        then, now = defaults | then, defaults | now
    keys = [key for key in {**then, **now} if then.get(key) != now.get(key)]
    values = [[repr(table[key]) if key in table else "not given" for table in (then, now)] for key in keys]
    differing = [f"{key} = {before}, here {here}" for key, (before, here) in zip(keys, values, strict=True)]
    texts = [each.files.get("problem.file", "") for each in (record.job, job)]
    if min(texts, key=len) not in max(texts, key=len):  # of a script it is the class, of a job the whole file
        differing.append("another problem file")
    if differing:
        raise UsageError(
            f"{file}: is of another problem ({'; '.join(differing)}), whose tasks take other times; "
            f"use it anyway with {any_problem}"
        )


def _problem_keys(job: RunDescription) -> Table:
    """Return the keys of a problem: scripts name the class of one of this package."""
    keys = {key: value for key, value in job.tables.get("problem", {}).items() if key != "file"}
    names = {cls.__qualname__: name for name, cls in PROBLEMS.items()}
    if keys.get("class") in names and not job.files.get("problem.file"):
        keys = {"name": names[keys.pop("class")]} | keys
    return keys


SLURM_ENERGY = "slurm_energy"  # joules of the Slurm jobs of a run, as Slurm's accounting has them
LATEST = "latest."  # begins the names of metrics as of the latest evaluation


def describe(record: Record) -> dict[str, Any]:
    """Return the contents of a record as plain numbers and strings; None where something is not known."""
    return {
        "run": record.run,
        "finished": bool(record.reason),
        "reason": record.reason,
        "failure": record.failure,
        "slurm_jobs": list(record.slurm_jobs),
        **dict.fromkeys((*MAYBE, SLURM_ENERGY)),
        **record.summary,
        "evaluation": latest_metrics(record),
        "events": [event._asdict() for event in record.events],
        "workers_table": _workers_table(record),
        "hosts": [row._asdict() for row in report_hosts(record)],
        "job": record.job.text,
        "settings": list(record.job.settings),
    }


def summary_of(record: Record, path: Path) -> dict[str, Any]:
    """Return the summary of a finished run, as it was printed at its end."""
    found = describe(record) | {"out": str(path)}
    return {name: found[name] for name in (*ALWAYS, *MAYBE, "evaluation", "finished", "out")}


def latest_metrics(record: Record) -> dict[str, float | None]:
    """Return what was evaluated last, by name; None where that is no finite number."""
    return {
        name.removeprefix(LATEST): value.item() if np.isfinite(value) else None
        for name, value in record.metrics.items()
        if name.startswith(LATEST)
    }


def _workers_table(record: Record) -> list[dict[str, Any]]:
    """Return one row per worker: who it is, what it did, how fast it was."""
    columns = _worker_columns(record.workers)
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    names = ("host", "slot", "hardware", "ranks", *columns)
    return [
        {
            name: None if value != value else value
            for name, value in zip(names, (*identity, *row), strict=True)
        }
        for identity, row in zip(record.identities, values, strict=True)
    ]


def _worker_columns(workers: State) -> State:
    tasks, seconds = workers["tasks"], workers["seconds"]
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = seconds / tasks
        spread = np.sqrt(np.maximum(workers["squares"] / tasks - mean**2, 0.0))
        overhead = workers["overhead"] / workers["arrivals"]
        spent = seconds + workers["unfinished"]
        share = spent / spent.sum()
    return {"tasks": tasks, "mean": mean, "spread": spread, "overhead": overhead, "share": share}
