"""Giving a job to Slurm: checked first, copied, and written down."""

import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpi_ata.driver.output import OutputOptions
from mpi_ata.driver.plan import Plan, plan_run
from mpi_ata.errors import RunError, UsageError
from mpi_ata.job import build_parts, load_job
from mpi_ata.layout import ranks_for, workers_in
from mpi_ata.problems import Problem
from mpi_ata.runfile.checkpoints import fresh_name
from mpi_ata.runfile.progress import read_progress
from mpi_ata.runfile.store import check_writable_path
from mpi_ata.slurm import commands
from mpi_ata.slurm.batch import warm_start_args
from mpi_ata.slurm.copies import Copies
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

    def run_file(self) -> Path:
        """Where the run is recorded: as asked, or under a fresh name."""
        return (self.out or fresh_name(self.job)).absolute()


@dataclass(frozen=True)
class Prepared:
    """A submission that was checked: its files, script and commands."""

    submission: Submission
    run: Path  # or what the members of a sweep are numbered after
    plans: Sequence[Plan] = ()  # of each run

    @property
    def dir(self) -> SubmissionDir:
        """Return the folder of this submission."""
        return SubmissionDir(self.run.with_suffix(SUFFIX))

    @property
    def runs(self) -> list[Path]:
        """Return the file of each run."""
        if self.submission.sweep is None:
            return [self.run]
        return [self.run.with_stem(f"{self.run.stem}-{j}") for j in range(len(self.submission.members))]

    @property
    def log(self) -> Path:
        """The beginning of the name of the log."""
        return self.dir.folder / "slurm"

    def copies(self) -> Copies:
        """Where the files that the runs need will be."""
        jobs = [
            # A run that is resumed may name files in an earlier copy, which is about to be replaced.
            load_job(self.submission.job, settings) if plan.earlier else plan.job
            for plan, settings in zip(self.plans, self.submission.members, strict=True)
        ]
        return Copies.of(jobs, self.dir.files)

    def script(self, copies: Copies) -> Script:
        """The batch script."""
        asked, sweep = self.submission, self.submission.sweep
        words = [sys.executable, "-P", "-m", "mpi_ata", "batch", str(copies.job)]
        words += ["--kept", str(self.dir.folder)]
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
            source=self.dir.folder / "source.sh" if asked.source else None,
        )

    def _member(self, number: int, copies: Copies) -> tuple[str, ...]:
        """The words for one run alone."""
        settings = (*self.submission.members[number], *copies.settings[number])
        return ("--out", str(self.runs[number]), *(word for text in settings for word in ("--set", text)))

    def commands(self) -> list[list[str]]:
        """What will be given to Slurm; a chain's ids are not known yet."""
        first = ["sbatch", "--parsable", str(self.dir.script)]
        later = ["sbatch", "--parsable", "--dependency=afterany:ID", str(self.dir.script)]
        return [first, *[later] * ((self.submission.chain or 1) - 1)]


def prepare(submission: Submission) -> Prepared:
    """Check a submission before it waits in a queue, and decide what each of its runs is."""
    found = Prepared(submission, submission.run_file())
    for path in [found.run, *submission.warm_start, submission.source or ""]:
        checked(str(path))
    if submission.source is not None and not submission.source.is_file():
        raise UsageError(f"--source {submission.source} is no file")
    check_writable(found.run)
    if submission.resume:
        check_not_running(found)
    else:
        check_not_existing(found)
    plans = plan_members(found)
    submission = submission if submission.resources.sized else with_ranks(submission, plans)
    check_members(submission, plans)
    return replace(found, submission=submission, plans=plans)


def plan_members(found: Prepared) -> list[Plan]:
    """Decide what each run of a submission is, and check what it is to learn from."""
    asked, plans = found.submission, []
    for run, settings in zip(found.runs, asked.members, strict=True):
        output = OutputOptions(run, True, asked.warm_start, asked.prior_weight, asked.any_problem)
        plan = plan_run(asked.job, settings, output)
        if plan.earlier is None:
            output.check_prior()
            _ = plan.prior  # files that do not fit are rejected here
        plans.append(plan)
    return plans


def with_ranks(submission: Submission, plans: Sequence[Plan]) -> Submission:
    """Return a submission on as many ranks as the workers of its job need."""
    found = {plan.job.run.workers for plan in plans}
    workers = found.pop()
    if workers is None or found:
        why = "the runs of --array differ in run.workers" if found else f"{submission.job} has no run.workers"
        raise UsageError(f"{why}: say with --ntasks how many ranks to start, manager included")
    return replace(submission, resources=replace(submission.resources, ntasks=ranks_for(workers)))


def check_members(asked: Submission, plans: Sequence[Plan]) -> None:
    """Reject jobs that could not be run; a problem that several runs share is built once."""
    if not asked.check:
        return
    problems: dict[str, Problem] = {}
    for plan in plans:
        job, ranks = plan.job, asked.resources.ranks
        workers = workers_in(ranks) if ranks is not None else job.run.workers
        key = repr((job.tables["problem"], job.source.files.get("problem.file")))
        try:
            problems[key] = build_parts(job, workers or 1, problems.get(key)).problem
        except UsageError as error:
            raise UsageError(f"{error} (--no-check leaves it to the nodes to find out)") from None


def check_not_existing(found: Prepared) -> None:
    """Never overwrite a run unasked."""
    for path in [*found.runs, found.dir.folder]:
        if path.exists():
            raise UsageError(f"{path} exists: go on with it by --resume, or choose another --out")


def check_not_running(found: Prepared) -> None:
    """Refuse to go on with runs that are finished, or that another Slurm job goes on with."""
    if all(read_progress(run).finished for run in found.runs):
        raise UsageError(f"{found.runs[0]} is finished already: choose another --out for a new run")
    for id in found.dir.submitted().jobs:
        if any(job.state not in commands.OVER for job in commands.jobs(id)):
            raise UsageError(f"Slurm job {id} is still at {found.run}: see mpi-ata status {id}")


def check_writable(run: Path) -> None:
    """Refuse a place where no run file can be written."""
    there = next(path for path in run.parents if path.exists())
    check_writable_path(there / run.name)


def submit(submission: Submission, dry_run: bool = False) -> dict[str, Any]:
    """Submit a job; what came of it, or would, in plain values."""
    found = prepare(submission)
    copies = found.copies()
    script = found.script(copies).text()
    if dry_run:
        return described(found, script, [])
    fresh = not found.dir.folder.exists()
    try:
        write_files(found, copies, script)
        jobs = sbatch_all(found)
    except BaseException as error:
        if fresh:
            shutil.rmtree(found.dir.folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise UsageError(f"{found.dir.folder} cannot be written: {error.strerror}") from None
        raise
    return described(found, str(found.dir.script), jobs)


def write_files(found: Prepared, copies: Copies, script: str) -> None:
    """Write down what the runs need; of an earlier submission only how it went remains."""
    shutil.rmtree(found.dir.files, ignore_errors=True)
    copies.make()
    if found.submission.source is not None:
        shutil.copyfile(found.submission.source, found.dir.folder / "source.sh")
    found.dir.script.write_text(script)
    for run in found.runs:
        found.dir.clear(run)


def sbatch_all(found: Prepared) -> list[int]:
    """Give the script to Slurm, once or as often as the chain is long."""
    jobs: list[int] = []
    try:
        for _ in range(found.submission.chain or 1):
            after = [f"--dependency=afterany:{jobs[-1]}"] if jobs else []
            jobs.append(commands.sbatch(found.dir.script, *after))
            found.dir.submit([str(job) for job in jobs], found.runs)
    except UsageError:
        commands.cancel(*map(str, jobs))
        raise
    except RunError as error:
        ids = list(map(str, jobs))
        commands.cancel(*ids)
        more = f"; before that it took jobs: make sure by scancel {' '.join(ids)}" if ids else ""
        raise RunError(f"{error}{more}") from None
    return jobs


def described(found: Prepared, script: str, jobs: list[int]) -> dict[str, Any]:
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
