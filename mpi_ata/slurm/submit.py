"""Giving a job to Slurm: checked first, copied, and written down."""

import re
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpi_ata.driver.loop import parts_of
from mpi_ata.driver.recorder import OutputOptions
from mpi_ata.errors import RunError, UsageError
from mpi_ata.job.schema import load_job
from mpi_ata.runfile.checkpoints import fresh_name
from mpi_ata.runfile.store import RunFile, check_place
from mpi_ata.slurm import commands
from mpi_ata.slurm.batch import warm_start_args
from mpi_ata.slurm.copies import Copies
from mpi_ata.slurm.progress import progress
from mpi_ata.slurm.script import Resources, Script, Sweep, checked, lead_time, signal_name
from mpi_ata.slurm.submission_dir import SUFFIX, SubmissionDir


@dataclass(frozen=True)
class Submission:
    """What a user wants to be run on Slurm."""

    job: Path
    resources: Resources
    out: Path | None = None
    settings: tuple[str, ...] = ()
    warm_start: tuple[Path, ...] = ()
    prior_weight: float = 1.0
    any_problem: bool = False
    resume: bool = False
    sweep: Sweep | None = None
    chain: int | None = None  # so many Slurm jobs, one after the other
    signal: str = "USR1"
    lead: int | None = None
    source: Path | None = None
    check: bool = True  # whether the problem can be built here, and so is

    def __post_init__(self) -> None:
        if self.chain is not None and self.sweep is not None:
            raise UsageError("--chain and --array do not go together: submit the members one by one")
        if self.resume and self.out is None:
            raise UsageError("--resume goes on with a run; say with which one: --out RUN.h5 --resume")
        signal_name(self.signal)

    @property
    def members(self) -> list[tuple[str, ...]]:
        """The settings of each run."""
        return [(*self.settings, *more) for more in (self.sweep.members if self.sweep else [()])]

    def on_its_workers(self) -> "Submission":
        """The same on as many ranks as the job has workers, and one for the manager."""
        found = {load_job(self.job, settings).run.workers for settings in self.members}
        workers = found.pop()
        if workers is None or found:
            why = "the runs of --array differ in run.workers" if found else f"{self.job} has no run.workers"
            raise UsageError(f"{why}: say by --ntasks how many ranks to start, manager included")
        return replace(self, resources=replace(self.resources, ntasks=workers + 1))

    def run_file(self) -> Path:
        """Where the run is recorded: as asked, or under a fresh name."""
        return (self.out or fresh_name(self.job)).absolute()


@dataclass(frozen=True)
class Plan:
    """What a submission comes to: files, script and commands."""

    submission: Submission
    run: Path  # or what the members of a sweep are numbered after

    @property
    def kept(self) -> SubmissionDir:
        """The folder of this submission."""
        return SubmissionDir(self.run.with_suffix(SUFFIX))

    @property
    def runs(self) -> list[Path]:
        """The file of each run."""
        if self.submission.sweep is None:
            return [self.run]
        return [self.run.with_stem(f"{self.run.stem}-{j}") for j in range(len(self.submission.members))]

    @property
    def log(self) -> Path:
        """The beginning of the name of the log."""
        return self.kept.folder / "slurm"

    def copies(self) -> Copies:
        """Where the files that the runs need will be."""
        return Copies.of(self.submission.job, self.submission.members, self.kept.files)

    def script(self, copies: Copies) -> Script:
        """The batch script."""
        asked, sweep = self.submission, self.submission.sweep
        words = [sys.executable, "-P", "-m", "mpi_ata", "batch", str(copies.job)]
        words += ["--kept", str(self.kept.folder)]
        earlier = [path.absolute() for path in asked.warm_start]
        words += warm_start_args(earlier, asked.prior_weight, asked.any_problem)
        words += ["--signal", asked.signal] if asked.signal != "USR1" else []
        words += ["--lead", str(asked.lead)] if asked.lead is not None else []
        words += ["--no-requeue"] if asked.chain is not None else []
        words += ["--siblings"] if sweep is not None and sweep.same_problem else []
        members = [self._member(number, copies) for number in range(len(self.runs))]
        return Script(
            name=re.sub(r"[^\w.-]", "_", asked.job.stem, flags=re.ASCII),
            resources=asked.resources,
            workdir=Path.cwd(),
            log=self.log,
            command=tuple(words) if sweep else (*words, *members[0]),
            members=tuple(members) if sweep else (),
            at_once=sweep.at_once if sweep else None,
            requeue=asked.chain is None,
            signal=asked.signal,
            lead=lead_time(asked.resources, asked.lead),
            source=self.kept.folder / "source.sh" if asked.source else None,
        )

    def _member(self, number: int, copies: Copies) -> tuple[str, ...]:
        """The words for one run alone."""
        settings = (*self.submission.members[number], *copies.settings[number])
        return ("--out", str(self.runs[number]), *(word for text in settings for word in ("--set", text)))

    def commands(self) -> list[list[str]]:
        """What will be given to Slurm; a chain's ids are not known yet."""
        first = ["sbatch", "--parsable", str(self.kept.script)]
        later = ["sbatch", "--parsable", "--dependency=afterany:ID", str(self.kept.script)]
        return [first, *[later] * ((self.submission.chain or 1) - 1)]


def plan(submission: Submission) -> Plan:
    """What a submission comes to; refuses what could not be run, before it waits in a queue."""
    load_job(submission.job, submission.settings)
    found = Plan(submission, submission.run_file())
    for path in [found.run, *submission.warm_start, submission.source or ""]:
        checked(str(path))
    if submission.source is not None and not submission.source.is_file():
        raise UsageError(f"--source {submission.source} is no file")
    check_writable(found.run)
    if submission.resume:
        check_not_running(found)
    else:
        check_not_existing(found)
    for run, settings in zip(found.runs, submission.members, strict=True):
        check_member(submission, run, settings)
    return found


def check_member(asked: Submission, run: Path, settings: tuple[str, ...]) -> None:
    """Refuse a job that could not be run, gone on with, or warm-started as asked."""
    keeping = OutputOptions(run, True, asked.warm_start, asked.prior_weight, asked.any_problem)
    job = keeping.continued(load_job(asked.job, settings))
    if not RunFile(run).exists():
        keeping.check_prior()
        keeping.sources(job, note=lambda text: None)
    workers = asked.resources.ranks - 1 if asked.resources.ranks is not None else job.run.workers
    try:
        if asked.check:
            parts_of(job, workers or 1)
    except UsageError as error:
        raise UsageError(f"{error} (--no-check leaves it to the nodes to find out)") from None


def check_not_existing(found: Plan) -> None:
    """Never overwrite a run unasked."""
    for path in [*found.runs, found.kept.folder]:
        if path.exists():
            raise UsageError(f"{path} exists: go on with it by --resume, or choose another --out")


def check_not_running(found: Plan) -> None:
    """Refuse to go on with runs that are finished, or that another Slurm job goes on with."""
    if all(progress(run).finished for run in found.runs):
        raise UsageError(f"{found.runs[0]} is finished already: choose another --out for a new run")
    for id in found.kept.submitted().jobs:
        if any(job.state not in commands.OVER for job in commands.jobs(id)):
            raise UsageError(f"Slurm job {id} is still at {found.run}: see mpi-ata status {id}")


def check_writable(run: Path) -> None:
    """Refuse a place where no run file can be written."""
    there = next(path for path in run.parents if path.exists())
    check_place(there / run.name)


def submit(submission: Submission, dry_run: bool = False) -> dict[str, Any]:
    """Submit a job; what came of it, or would, in plain values."""
    found = plan(submission if submission.resources.sized else submission.on_its_workers())
    copies = found.copies()
    script = found.script(copies).text()
    if dry_run:
        return described(found, script, [])
    fresh = not found.kept.folder.exists()
    try:
        keep(found, copies, script)
        jobs = given(found)
    except BaseException as error:
        if fresh:
            shutil.rmtree(found.kept.folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise UsageError(f"{found.kept.folder} cannot be written: {error.strerror}") from None
        raise
    return described(found, str(found.kept.script), jobs)


def keep(found: Plan, copies: Copies, script: str) -> None:
    """Write down what the runs need; of an earlier submission only how it went remains."""
    shutil.rmtree(found.kept.files, ignore_errors=True)
    copies.make()
    if found.submission.source is not None:
        shutil.copyfile(found.submission.source, found.kept.folder / "source.sh")
    found.kept.script.write_text(script)
    for run in found.runs:
        found.kept.clear(run)


def given(found: Plan) -> list[int]:
    """Give the script to Slurm, once or as often as the chain is long."""
    jobs: list[int] = []
    try:
        for _ in range(found.submission.chain or 1):
            after = [f"--dependency=afterany:{jobs[-1]}"] if jobs else []
            jobs.append(commands.sbatch(found.kept.script, *after))
            found.kept.submit([str(job) for job in jobs], found.runs)
    except UsageError:
        commands.cancel(*map(str, jobs))
        raise
    except RunError as error:
        ids = list(map(str, jobs))
        commands.cancel(*ids)
        more = f"; before that it took jobs: make sure by scancel {' '.join(ids)}" if ids else ""
        raise RunError(f"{error}{more}") from None
    return jobs


def described(found: Plan, script: str, jobs: list[int]) -> dict[str, Any]:
    """What came of a submission."""
    log = f"{found.log}-{jobs[0] if jobs else 'ID'}{'_0' if found.submission.sweep else ''}.out"
    return {
        "job": jobs[0] if jobs else None,
        "jobs": jobs,
        "ranks": found.submission.resources.ranks,
        "run": str(found.runs[0]),
        "runs": [str(run) for run in found.runs],
        "log": log,
        "script": script,
        "commands": found.commands(),
    }
