"""Everything that is decided before a run starts, decided once."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from mpi_ata.driver.output import OutputOptions
from mpi_ata.job import Job, Parts, build_parts, load_job, resume_job
from mpi_ata.launch import rank
from mpi_ata.layout import MANAGER
from mpi_ata.runfile.checkpoints import fresh_path
from mpi_ata.runfile.earlier import EarlierRuns
from mpi_ata.runfile.load import load_named
from mpi_ata.runfile.prior import RunStats, discount, merge_runs
from mpi_ata.runfile.record import Record
from mpi_ata.runfile.store import RunFile


@dataclass(frozen=True)
class Plan:
    """A job with all its settings, the run that it continues, and what earlier runs know of its workers."""

    job: Job
    output: OutputOptions | None = None  # None: nothing is recorded
    file: RunFile | None = None  # where it is recorded, if that is known already
    earlier: Record | None = None  # the run to resume
    changes: tuple[str, ...] = ()  # in its job since then, in words
    notes: list[str] = field(default_factory=list)  # for the user, when the run starts

    @property
    def finished(self) -> bool:
        """Return whether the run to resume has reached its limit, and nothing is changed."""
        return self.earlier is not None and bool(self.earlier.reason) and not self.changes and not self.notes

    @cached_property
    def prior(self) -> list[RunStats]:
        """Read what earlier runs learned of the workers; files that do not fit the job are rejected."""
        if self.output is None or self.earlier is not None:
            return []
        runs = EarlierRuns(None if self.output.any_problem else self.job)
        known = merge_runs(runs.read(self.output.warm_start))
        self.notes.extend(runs.notes)
        return [discount(stats, self.output.prior_weight) for stats in known]

    def run_file(self) -> RunFile:
        """Return the file to record the run in: as the user said, or a fresh one in runs/."""
        return self.file or RunFile(fresh_path(self.job.path))

    def parts(self, n: int | None = None) -> Parts:
        """Build what the run consists of; here the user's code is imported."""
        return build_parts(self.job, n)

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
    """Decide the same where the place of the run file is checked elsewhere."""
    file = None if output.out is None else RunFile(output.out)
    if file is not None and output.resumes():
        return _resume(job, settings, output, file)
    notes = []
    if file is not None and output.resume:
        notes.append(f"there is no {file.path} yet: starting a new run")
    return Plan(load_job(job, settings), output, file, notes=notes)


def _resume(job: Path, settings: Sequence[str], output: OutputOptions, file: RunFile) -> Plan:
    record, complaint = load_named(file)
    resumed, changes = resume_job(job, record.job, settings)
    notes = [complaint] if complaint else []
    if output.warm_start:
        notes.append(f"{file.path} continues with what it knows; --warm-start is for new runs")
    return Plan(resumed, output, file, record, tuple(changes), notes)


def resolve_on_ranks(job: Path, settings: Sequence[str] = (), output: OutputOptions | None = None) -> Plan:
    """Decide the same on all ranks of this MPI world; only the manager needs to see the run file."""
    from mpi_ata.clusters.world import bcast_text, collective_check

    plan = None
    with collective_check():
        if rank() == MANAGER:
            plan = resolve(job, settings, output)
    settings = json.loads(bcast_text(json.dumps(plan.job.source.settings if plan else None)))
    with collective_check():
        return plan or Plan(load_job(job, settings))
