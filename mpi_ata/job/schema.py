"""A job file as frozen dataclasses: strict keys, checked values; no user code runs when one is read."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from mpi_ata.clusters import FaultPolicy
from mpi_ata.clusters.exchange.choice import check_exchange
from mpi_ata.errors import UsageError, did_you_mean
from mpi_ata.job.allocator_swap import check_known, exchanged, override_job
from mpi_ata.job.component import Component, choose
from mpi_ata.job.method_table import check_built_in
from mpi_ata.job.names import ALLOCATORS, METHODS, PROBLEMS
from mpi_ata.job.source import JobText
from mpi_ata.job.stop import Stop
from mpi_ata.job.tables import Tables, group, parse_setting, parse_tables, read_text, read_user_files
from mpi_ata.job.times_table import TimesTable, read_times
from mpi_ata.job.values import build_table, check_numbers
from mpi_ata.version import __version__

TABLES = ("problem", "method", "allocator", "times", "stop", "run", "faults")
REQUIRED = ("problem", "method", "stop")
LOGS = ("csv", "tensorboard", "wandb", "mlflow")


@dataclass(frozen=True)
class RunTable:
    """The table [run]: what is not about the mathematics."""

    workers: int | None = None
    seed: int = 0
    evaluate_every: int = 10
    checkpoint_rounds: int | None = None
    checkpoint_seconds: float | None = None
    grace: float = 20.0  # seconds that a round may still take after a signal
    log: list[str] | None = None  # names of loggers
    exchange: str = "auto"  # how x and results travel between ranks
    replicated: bool = False  # whether workers keep x and the state of the update

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers={self.workers} must be at least 1")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed={self.seed} must be from 0 to 2**64 - 1")
        if self.evaluate_every < 1:
            raise ValueError(f"evaluate_every={self.evaluate_every} must be at least 1 round")
        if self.checkpoint_rounds is not None and self.checkpoint_rounds < 1:
            raise ValueError(f"checkpoint_rounds={self.checkpoint_rounds} must be at least 1")
        if self.checkpoint_seconds is not None and not self.checkpoint_seconds >= 0:
            raise ValueError(f"checkpoint_seconds={self.checkpoint_seconds} must be at least 0")
        if not self.grace >= 0:
            raise ValueError(f"grace={self.grace} must be at least 0 seconds")
        check_exchange(self.exchange)
        if self.replicated and self.exchange == "star":
            raise ValueError("replicated = true needs a chain; set exchange = 'auto' or 'chain'")
        for name in self.log or ():
            if name not in LOGS:
                listed = f"{', '.join(LOGS)}{did_you_mean(str(name), LOGS)}"
                raise ValueError(f"log has the unknown name {name!r}; valid names: {listed}")


@dataclass(frozen=True)
class Job:
    """What one job file describes, with what --set changed."""

    path: Path
    tables: Tables  # as they count, for comparing and copying
    source: JobText
    problem: Component
    method: Component  # with the keys of its update, which stand in the same table
    allocator: Component | None
    times: TimesTable | None
    faults: FaultPolicy
    stop: Stop
    run: RunTable

    @property
    def digest(self) -> bytes:
        """Return a hash of what all ranks must agree on: version, tables, and the files they name."""
        return sha256(f"{__version__} {self.tables!r} {self.source.files!r}".encode()).digest()

    def with_seed(self, seed: int) -> "Job":
        """Return the same job with another seed."""
        with prefix_errors(self.path):
            table = self.tables.get("run", {}) | {"seed": seed}
            return replace(self._set("run.seed", seed), run=build_table("run", RunTable, table))

    def with_allocators(self, names: Sequence[str]) -> list["Job"]:
        """Return the same job under other allocators ("own": its own), each with the keys it knows."""
        with prefix_errors(self.path):
            if self.allocator is None:
                raise UsageError("this method has no allocator to exchange; use mpi-ata run")
            own = self.allocator
            components = [own if name == "own" else exchanged(name, own.keys) for name in names]
            check_known(own.keys, [own, *components])
        jobs = [replace(self, allocator=component) for component in components]
        named = zip(names, jobs, strict=True)
        return [job if name == "own" else job._set("allocator.name", name) for name, job in named]

    def _set(self, key: str, value: str | int) -> "Job":
        """Return the job with tables and text as if --set had given table.key; its parts stay as they are."""
        setting = parse_setting(f"{key}={value}")
        source = replace(self.source, settings=(*self.source.settings, setting.text))
        return replace(self, tables=override_job(self.tables, group([setting])), source=source)


def load_job(path: Path, settings: Iterable[str] = ()) -> Job:
    """Read a job file; `settings` are table.key=value and override it."""
    text, settings = read_text(path), tuple(settings)
    with prefix_errors(path):
        tables = override_job(parse_tables(text), group(map(parse_setting, settings)))
        return job_from(path, text, settings, tables)


def tables_of(source: JobText) -> Tables:
    """Return the tables of a job as it was saved, with what --set changed."""
    return override_job(parse_tables(source.text), group(map(parse_setting, source.settings)))


def job_from(path: Path, text: str, settings: tuple[str, ...], tables: Tables) -> Job:
    """Return the job in these tables, checked as far as that needs none of the user's code."""
    for name in tables:
        if name not in TABLES:
            listed = f"{', '.join(TABLES)}{did_you_mean(name, TABLES)}"
            raise UsageError(f"unknown table {name!r}; valid tables: {listed}")
        for key, value in tables[name].items():
            check_numbers(name, key, value)
    for name in REQUIRED:
        if not tables.get(name):
            raise UsageError(f"the table [{name}] is missing or empty")
    folder, keys = path.parent, tables.get("allocator")
    method = choose("method", tables["method"], METHODS, folder)
    allocator = None if keys is None else choose("allocator", keys, ALLOCATORS, folder)
    check_built_in(method, allocator, folder)
    files = read_user_files(folder, tables)
    return Job(
        path=path,
        tables=tables,
        problem=choose("problem", tables["problem"], PROBLEMS, folder),
        method=method,
        allocator=allocator,
        times=read_times(tables["times"], folder, _law_file(files)) if "times" in tables else None,
        faults=build_table("faults", FaultPolicy, tables.get("faults", {}), owned=False),
        stop=build_table("stop", Stop, tables["stop"]),
        run=build_table("run", RunTable, tables.get("run", {})),
        source=JobText(text, settings, files),
    )


@contextmanager
def prefix_errors(path: Path) -> Iterator[None]:
    """Let an error say which job file it is about."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _law_file(files: Mapping[str, str]) -> str:
    return files.get("times.file", "") + files.get("times.run", "")
