"""Everything that is decided before a run starts, decided once."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Protocol

from mpi_ata.driver.output import OutputOptions
from mpi_ata.job import Job, Parts, build_parts, load_job, resume_job
from mpi_ata.job.schema import RunTable
from mpi_ata.job.source import JobText
from mpi_ata.job.stop import Stop
from mpi_ata.launch import under_launcher
from mpi_ata.runfile.checkpoints import fresh_path
from mpi_ata.runfile.earlier import EarlierRuns, JobTables
from mpi_ata.runfile.load import load_named
from mpi_ata.runfile.prior import RunStats, discount, merge_runs
from mpi_ata.runfile.record import Record
from mpi_ata.runfile.store import RunFile


class Described(Protocol):
    """What driving and recording a run needs to know of it: a job file says it, or a script."""

    @property
    def source(self) -> JobText: ...
    @property
    def stop(self) -> Stop: ...
    @property
    def run(self) -> RunTable: ...


class _Totals(NamedTuple):
    """What limits are about, of a run in its file."""

    round: int
    clock: float
    elapsed: float
    loss: float
    gap: float


@dataclass(frozen=True)
class Start:
    """A run as it was described, the run that it continues, and what earlier runs know of its workers."""

    job: Described
    file: RunFile | None = None  # where the run is recorded; None: nowhere
    earlier: Record | None = None  # the run to resume
    damaged: bool = False  # whether a newer save of it could not be read
    changes: tuple[str, ...] = ()  # in its job since then, in words
    prior: list[RunStats] = field(default_factory=list)  # what earlier runs learned of workers
    notes: tuple[str, ...] = ()  # for the user, when the run starts

    @property
    def finished(self) -> str:
        """Return the limit at which the run to resume has nothing left to do; "" where it has."""
        if self.earlier is None or self.damaged:
            return ""
        if not self.changes:
            return self.earlier.reason
        if not all(change.startswith("stop.") for change in self.changes):
            return ""
        totals = (self.earlier.totals[name].item() for name in _Totals._fields)
        return self.job.stop.reached(_Totals(*totals)) or ""


@dataclass(frozen=True)
class Plan(Start):
    """The same for a job file: a job with all its settings."""

    job: Job

    def parts(self, n: int | None = None) -> Parts:
        """Build what the run consists of; here the user's code is imported."""
        return build_parts(self.job, n)

    def with_seed(self, seed: int) -> "Plan":
        """Return the same plan with another seed."""
        return replace(self, job=self.job.with_seed(seed))

    def with_allocators(self, names: Sequence[str]) -> list["Plan"]:
        """Return the same plan under other allocators."""
        return [replace(self, job=job) for job in self.job.with_allocators(names)]


def resolve(job: Path, settings: Sequence[str] = (), output: OutputOptions | None = None) -> Plan:
    """Decide what is to be run: from a job file, what --set changes, and what is to be recorded."""
    if output is None:
        return Plan(load_job(job, settings))
    output.check()
    return plan_run(job, settings, output)


def plan_run(job: Path, settings: Sequence[str], output: OutputOptions) -> Plan:
    """Return the plan of a recorded run, whose options and run-file path were checked before."""
    if output.resumes():
        return _resume(job, settings, output)
    loaded = load_job(job, settings)
    prior, notes = read_prior(loaded, output)
    file = RunFile(fresh_path(job) if output.out is None else output.out)
    return Plan(loaded, file, prior=prior, notes=tuple(notes))


def read_prior(job: JobTables, output: OutputOptions) -> tuple[list[RunStats], list[str]]:
    """Return what earlier runs learned of workers, and notes; files that do not fit the job are rejected."""
    runs = EarlierRuns(None if output.any_problem else job)
    known = merge_runs(runs.read(output.warm_start))
    notes = list(runs.notes)
    if output.warm_start and not known:
        folders = ", ".join(map(str, output.warm_start))
        notes.append(f"no run to warm-start from in {folders}: all workers start cold")
    if output.resume:
        notes.insert(0, f"there is no {output.out} yet: starting a new run")
    return [discount(stats, output.prior_weight) for stats in known], notes


def _resume(job: Path, settings: Sequence[str], output: OutputOptions) -> Plan:
    assert output.out is not None
    file = RunFile(output.out)
    record, complaint = load_named(file)
    resumed, changes = resume_job(job, record.job, settings, output.accept_changes)
    notes = resume_notes(output, complaint)
    return Plan(resumed, file, record, bool(complaint), tuple(changes), notes=tuple(notes))


def resume_notes(output: OutputOptions, complaint: str) -> list[str]:
    """Return what the user should know of the run to resume."""
    notes = [complaint] if complaint else []
    if output.warm_start:
        notes.append(f"{output.out} is resumed with what it has learned; --warm-start is for new runs")
    return notes


def resolve_on_ranks(job: Path, settings: Sequence[str] = (), output: OutputOptions | None = None) -> Plan:
    """Decide the same on all ranks of this MPI world; only the manager needs to see the run file."""
    from mpi_ata.clusters.world import bcast_text, collective_check, is_manager, workers_in_world

    plan = None
    with collective_check():
        workers_in_world()
        if is_manager():
            plan = resolve(job, settings, output)
    settings = json.loads(bcast_text(json.dumps(plan.job.source.settings if plan else None)))
    with collective_check():
        return plan or Plan(load_job(job, settings))


@contextmanager
def checked_together() -> Iterator[None]:
    """Let what may fail on one rank fail on all; without a launcher it just fails."""
    if not under_launcher():
        yield
        return
    from mpi_ata.clusters.world import collective_check

    with collective_check():
        yield
