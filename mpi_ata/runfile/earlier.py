"""Earlier runs that the user names: which of them fit the job, and what they learned of workers."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from mpi_ata.errors import UsageError
from mpi_ata.job.schema import tables_of
from mpi_ata.job.source import JobText
from mpi_ata.job.tables import Table, Tables
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.prior import RunStats
from mpi_ata.runfile.record import Record
from mpi_ata.runfile.store import RunFile

MAX_COMPLAINTS = 3  # about files of one folder that are reported one by one


class JobTables(Protocol):
    """What is compared of the runs of a job file, or of a script."""

    @property
    def tables(self) -> Tables: ...
    @property
    def source(self) -> JobText: ...


class EarlierRuns:
    """Reads earlier runs; `notes` collects what the user should know of files left out."""

    def __init__(self, job: JobTables | None) -> None:
        self._job = job  # None: runs of any problem will do
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
            _check_problem(file, record, self._job)
        return record


def run_files(folder: Path) -> list[Path]:
    """Return the run files of a folder; one that was killed while being replaced has left its older save."""
    older = (file.with_suffix("") for file in folder.glob("*.h5.previous"))
    return sorted({*folder.glob("*.h5"), *older})


def _check_problem(file: Path, record: Record, job: JobTables) -> None:
    """Reject a run of another problem: its tasks take other times."""
    then, now = _problem_of(record.job), job.tables.get("problem", {})
    keys = [key for key in {**then, **now} if key != "file" and then.get(key) != now.get(key)]
    differing = [f"{key} = {_shown(then, key)}, here {_shown(now, key)}" for key in keys]
    if _problem_file(record.job) != _problem_file(job.source):
        differing.append("another problem file")
    if differing:
        raise UsageError(
            f"{file}: is of another problem ({'; '.join(differing)}), whose tasks take other times; "
            "use it anyway with --any-problem"
        )


def _problem_of(source: JobText) -> Table:
    return tables_of(source).get("problem", {})


def _problem_file(source: JobText) -> str:
    return source.files.get("problem.file", "")


def _shown(table: Table, key: str) -> str:
    return repr(table[key]) if key in table else "not given"
