"""Everything that is decided before a run starts, decided once."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

from mpi_ata.errors import UsageError
from mpi_ata.job import Job, Parts, build_parts, load_job, resume_job
from mpi_ata.job.schema import RunDescription
from mpi_ata.launch import under_launcher
from mpi_ata.runfile.checkpoints import fresh_path
from mpi_ata.runfile.load import EarlierRuns, load_named
from mpi_ata.runfile.lock import RunLock
from mpi_ata.runfile.priors import RunStats, discount, merge_runs
from mpi_ata.runfile.schema import Record
from mpi_ata.runfile.store import RunFile, check_writable_path


@dataclass(frozen=True)
class OutputOptions:
    """The options --out, --resume, --accept-changes, --warm-start, --prior-weight and --any-problem."""

    out: Path | None = None  # a fresh name in runs/, if not given
    resume: bool = False
    warm_start: tuple[Path, ...] = ()
    prior_weight: float = 1.0
    any_problem: bool = False
    accept_changes: bool = False  # in the job or the user's files, when a run is resumed
    in_python: bool = False  # whether they are arguments of a script, and are called so in messages

    def name(self, option: str, value: object = None) -> str:
        """Return an option as the user writes it, with a value if one is given."""
        if self.in_python:
            return option if value is None else f"{option}={value!r}"
        flag = f"--{option.replace('_', '-')}"
        shown = f"{value:g}" if isinstance(value, float) else value
        return flag if value in (None, True) else f"{flag} {shown}"

    def resume_words(self, out: str | Path) -> str:
        """Return the options with which a run is resumed."""
        return (", " if self.in_python else " ").join([self.name("out", str(out)), self.name("resume", True)])

    def check(self) -> None:
        """Reject invalid combinations and places, before anything else is done."""
        if self.out is None and self.resume:
            resume = self.name("resume", True)
            raise UsageError(f"{resume} continues a run; name its file: {self.resume_words('RUN.h5')}")
        if self.accept_changes and not self.resume:
            raise UsageError(f"{self.name('accept_changes', True)} requires {self.name('resume', True)}")
        if self.out is not None:
            check_writable_path(self.out)
            file = RunFile(self.out)
            if file.exists() and not self.resume:
                there = self.out if self.out.exists() else file.previous
                resume, other = self.name("resume", True), self.name("out")
                raise UsageError(f"{there}: exists; continue it with {resume}, or choose another {other}")
            RunLock(self.out).check()
        if not self.resumes():
            self.check_prior()

    def resumes(self) -> bool:
        """Return whether there is a run to continue."""
        return self.out is not None and self.resume and RunFile(self.out).exists()

    def check_prior(self) -> None:
        """Reject a warm start from nothing."""
        if not 0 < self.prior_weight <= 1:
            weight = self.name("prior_weight", self.prior_weight)
            raise UsageError(f"{weight} must be above 0 and at most 1")
        if self.prior_weight < 1 and not self.warm_start:
            raise UsageError(f"{self.name('prior_weight')} requires {self.name('warm_start')}")
        if self.any_problem and not self.warm_start:
            raise UsageError(f"{self.name('any_problem', True)} requires {self.name('warm_start')}")
        for path in self.warm_start:
            if not os.path.exists(path) and not os.path.exists(f"{path}.previous"):
                warm_start = self.name("warm_start", str(path))
                raise UsageError(f"{warm_start}: there is no such run file or folder")


SUBMITTED = "MPI_ATA_SUBMITTED"  # in the environment of a submitted script: options of its runs, as JSON
_numbers = count(1)  # of the runs of a submitted script


def submitted_output(output: OutputOptions) -> OutputOptions:
    """Return the options of a run, of a submitted script those of its submission: it is always resumed.

    The first run of a script is recorded in RUN.h5, a second one in RUN.2.h5, and so on.
    """
    if not (text := os.environ.get(SUBMITTED)):
        return output
    given, number = json.loads(text), next(_numbers)
    out = Path(given["out"])
    prior = {"warm_start": tuple(map(Path, given["warm_start"])), "prior_weight": given["prior_weight"]}
    return replace(
        output,
        out=out if number == 1 else out.with_name(f"{out.stem}.{number}{out.suffix}"),
        resume=True,
        any_problem=output.any_problem or given["any_problem"],
        accept_changes=output.accept_changes or given["accept_changes"],
        **(prior if given["warm_start"] else {}),
    )


@dataclass(frozen=True)
class RunStart:
    """A run as it was described, the run that it continues, and what earlier runs know of its workers."""

    job: RunDescription
    file: RunFile | None = None  # where the run is recorded; None: nowhere
    earlier: Record | None = None  # the run to resume
    damaged: bool = False  # whether a newer save of it could not be read
    changes: tuple[str, ...] = ()  # in its job since then, in words
    prior: list[RunStats] = field(default_factory=list)  # what earlier runs learned of workers
    notes: tuple[str, ...] = ()  # for the user, when the run starts
    output: OutputOptions = OutputOptions()

    @property
    def finished(self) -> str:
        """Return the limit at which the run to resume has nothing left to do; "" where it has."""
        if self.earlier is None or self.damaged:
            return ""
        if not self.changes:
            return self.earlier.reason
        if not all(change.startswith("stop.") for change in self.changes):
            return ""
        totals = {name: value.item() for name, value in self.earlier.totals.items()}
        return self.job.stop.reached(SimpleNamespace(**totals)) or ""


@dataclass(frozen=True)
class Plan(RunStart):
    """The same for a job file: a job with all its settings."""

    job: Job

    def parts(self) -> Parts:
        """Build what the run consists of; here the user's code is imported."""
        return build_parts(self.job)

    def with_seed(self, seed: int) -> "Plan":
        """Return the same plan with another seed."""
        return replace(self, job=self.job.with_seed(seed))

    def with_each(self, kind: str, names: Sequence[str]) -> list["Plan"]:
        """Return the same plan under other allocators, or methods, as `kind` says."""
        job = self.job
        jobs = job.with_allocators(names) if kind == "allocator" else job.with_methods(names)
        return [replace(self, job=each) for each in jobs]


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
    return Plan(loaded, file, prior=prior, notes=tuple(notes), output=output)


def read_prior(job: RunDescription, output: OutputOptions) -> tuple[list[RunStats], list[str]]:
    """Return what earlier runs learned of workers, and notes; files that do not fit the job are rejected."""
    notes = [f"there is no {output.out} yet: starting a new run"] if output.resume else []
    if not output.warm_start:
        return [], notes
    runs = EarlierRuns(None if output.any_problem else job, output.name("any_problem", True))
    known = merge_runs(runs.read(output.warm_start))
    notes += runs.notes
    if not known:
        folders = ", ".join(map(str, output.warm_start))
        notes.append(f"no run to warm-start from in {folders}: all workers start cold")
    return [discount(stats, output.prior_weight) for stats in known], notes


def _resume(job: Path, settings: Sequence[str], output: OutputOptions) -> Plan:
    assert output.out is not None
    file = RunFile(output.out)
    record, complaint = load_named(file)
    resumed, changes, hidden = resume_job(
        job, record.job, settings, output.accept_changes, finished=bool(record.reason)
    )
    notes = [*resume_notes(output, complaint), *hidden]
    return Plan(resumed, file, record, bool(complaint), tuple(changes), notes=tuple(notes), output=output)


def resume_notes(output: OutputOptions, complaint: str) -> list[str]:
    """Return what the user should know of the run to resume."""
    notes = [complaint] if complaint else []
    if output.warm_start:
        warm_start = output.name("warm_start")
        notes.append(f"{output.out} is resumed with what it has learned; {warm_start} is for new runs")
    return notes


def resolve_on_ranks(job: Path, settings: Sequence[str] = (), output: OutputOptions | None = None) -> Plan:
    """Decide the same on all ranks of this MPI world; only the manager needs to see the run file."""
    from mpi_ata.clusters.mpi.handshake import collective_check
    from mpi_ata.clusters.mpi.world import bcast_text, is_manager, workers_in_world

    plan = None
    with collective_check():
        workers_in_world()
        if is_manager():
            plan = resolve(job, settings, output)
    settings = json.loads(bcast_text(json.dumps(plan.job.settings if plan else None)))
    with collective_check():
        return plan or Plan(load_job(job, settings))


@contextmanager
def checked_together() -> Iterator[None]:
    """Let what may fail on one rank fail on all; without a launcher it just fails."""
    if not under_launcher():
        yield
        return
    from mpi_ata.clusters.mpi.handshake import collective_check

    with collective_check():
        yield
