"""Giving a job to Slurm: checked first, copied, and written down."""

import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpi_ata.errors import UsageError
from mpi_ata.job import load_job
from mpi_ata.slurm import commands
from mpi_ata.slurm.kept import SUFFIX, Kept, copy_files
from mpi_ata.slurm.progress import progress
from mpi_ata.slurm.script import Resources, Script, Sweep, checked, lead_time, signal_name

RUNS = Path("runs")


@dataclass(frozen=True)
class Submission:
    """What a user wants to be run on Slurm."""

    job: Path
    resources: Resources
    out: Path | None = None
    settings: tuple[str, ...] = ()
    warm_start: tuple[str, ...] = ()
    resume: bool = False
    sweep: Sweep | None = None
    chain: int | None = None  # so many Slurm jobs, one after the other
    signal: str = "USR1"
    lead: int | None = None
    source: Path | None = None
    more: tuple[str, ...] = field(default=())  # further options of mpi-ata run

    def __post_init__(self) -> None:
        if self.chain is not None and self.sweep is not None:
            raise UsageError("--chain and --array do not go together: submit the members one by one")
        signal_name(self.signal)

    def run_file(self) -> Path:
        """Where the run is recorded: as asked, or under a fresh name."""
        if self.out is not None:
            return self.out.absolute()
        stem, number = f"{self.job.stem}-{time.strftime('%Y%m%d-%H%M%S')}", 0
        while any((RUNS / f"{stem}{number or ''}{suffix}").exists() for suffix in (".h5", SUFFIX)):
            number += 1
        return (RUNS / f"{stem}{number or ''}.h5").absolute()


@dataclass(frozen=True)
class Plan:
    """What a submission comes to: files, script and commands."""

    submission: Submission
    run: Path  # or what the members of a sweep are numbered after

    @property
    def kept(self) -> Kept:
        """The folder of this submission."""
        return Kept(self.run.with_suffix(SUFFIX))

    @property
    def runs(self) -> list[Path]:
        """The file of each run."""
        if self.submission.sweep is None:
            return [self.run]
        return [self.run.with_stem(f"{self.run.stem}-{j}") for j in range(len(self.submission.sweep.members))]

    @property
    def log(self) -> Path:
        """The beginning of the name of the log."""
        return self.kept.folder / "slurm"

    def script(self, job: Path, settings: list[str]) -> Script:
        """The batch script, for the copy of the job file and further settings that it needs."""
        asked, sweep = self.submission, self.submission.sweep
        words = [sys.executable, "-P", "-m", "mpi_ata", "batch", str(job), "--kept", str(self.kept.folder)]
        for setting in [*asked.settings, *settings]:
            words += ["--set", setting]
        for path in asked.warm_start:
            words += ["--warm-start", str(Path(path).absolute())]
        words += asked.more
        words += ["--signal", asked.signal] if asked.signal != "USR1" else []
        words += ["--lead", str(asked.lead)] if asked.lead is not None else []
        words += ["--no-requeue"] if asked.chain is not None else []
        words += ["--siblings"] if sweep is not None and sweep.same_problem else []
        if sweep is None:
            words += ["--out", str(self.run)]
        return Script(
            name=re.sub(r"[^\w.-]", "_", asked.job.stem, flags=re.ASCII),
            resources=asked.resources,
            workdir=Path.cwd(),
            log=self.log,
            command=tuple(words),
            members=tuple(self._member(j) for j in range(len(self.runs))) if sweep else (),
            at_once=sweep.at_once if sweep else None,
            requeue=asked.chain is None,
            signal=asked.signal,
            lead=lead_time(asked.resources, asked.lead),
            source=self.kept.folder / "source.sh" if asked.source else None,
        )

    def _member(self, number: int) -> tuple[str, ...]:
        assert self.submission.sweep is not None
        words = ["--out", str(self.runs[number])]
        for setting in self.submission.sweep.members[number]:
            words += ["--set", setting]
        return tuple(words)

    def commands(self) -> list[list[str]]:
        """What will be given to Slurm; a chain's ids are not known yet."""
        first = ["sbatch", "--parsable", str(self.kept.script)]
        later = ["sbatch", "--parsable", "--dependency=afterany:ID", str(self.kept.script)]
        return [first, *[later] * ((self.submission.chain or 1) - 1)]


def plan(submission: Submission, check: Callable[[Path, tuple[str, ...]], Any]) -> Plan:
    """What a submission comes to; `check` refuses a job that could not be run with these settings."""
    load_job(submission.job, submission.settings)
    members = submission.sweep.members if submission.sweep else ((),)
    for member in members:
        check(submission.job, (*submission.settings, *member))
    found = Plan(submission, submission.run_file())
    for path in [found.run, *submission.warm_start, submission.source or "", *submission.more]:
        checked(str(path))
    for path in submission.warm_start:
        if not Path(path).exists():
            raise UsageError(f"--warm-start {path}: there is no such file or folder")
    if submission.source is not None and not submission.source.is_file():
        raise UsageError(f"--source {submission.source} is no file")
    if submission.resume:
        refuse_busy(found)
    else:
        refuse_existing(found)
    refuse_unwritable(found.run.parent)
    return found


def refuse_existing(found: Plan) -> None:
    """Never overwrite a run unasked."""
    for path in [*found.runs, found.kept.folder]:
        if path.exists():
            raise UsageError(f"{path} exists: go on with it by --resume, or choose another --out")


def refuse_busy(found: Plan) -> None:
    """Refuse to go on with runs that are finished, or that another Slurm job goes on with."""
    if all(progress(run).finished for run in found.runs):
        raise UsageError(f"{found.runs[0]} is finished already: choose another --out for a new run")
    for id in found.kept.submitted().get("jobs", []):
        if any(job.state not in commands.OVER for job in commands.jobs(str(id))):
            raise UsageError(f"Slurm job {id} is still at {found.run}: see mpi-ata status {id}")


def refuse_unwritable(folder: Path) -> None:
    """Refuse a folder that no run file can be written to."""
    there = next(path for path in [folder, *folder.parents] if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UsageError(f"cannot write into {there}: choose another place for the run file with --out")


def submit(
    submission: Submission, check: Callable[[Path, tuple[str, ...]], Any], dry_run: bool = False
) -> dict[str, Any]:
    """Submit a job; what came of it, or would, in plain values."""
    found = plan(submission, check)
    if dry_run:
        return described(found, found.script(found.kept.files / submission.job.name, []), [])
    fresh = not found.kept.folder.exists()
    found.kept.folder.mkdir(parents=True, exist_ok=True)
    try:
        copy, settings = copied(found)
        members = submission.sweep.members if submission.sweep else ((),)
        check(copy, (*submission.settings, *settings, *members[0]))
        script = found.script(copy, settings)
        found.kept.script.write_text(script.text())
        for run in found.runs:
            found.kept.clear(run)
        jobs = given(found)
    except BaseException:
        if fresh:
            shutil.rmtree(found.kept.folder)
        raise
    return described(found, script, jobs)


def copied(found: Plan) -> tuple[Path, list[str]]:
    """Copy what the job consists of; the copy of the job file, and settings that it needs."""
    shutil.rmtree(found.kept.files, ignore_errors=True)
    if found.submission.source is not None:
        shutil.copyfile(found.submission.source, found.kept.folder / "source.sh")
    return copy_files(found.submission.job, found.submission.settings, found.kept.files)


def given(found: Plan) -> list[int]:
    """Give the script to Slurm, once or as often as the chain is long."""
    jobs: list[int] = []
    try:
        for _ in range(found.submission.chain or 1):
            after = [f"--dependency=afterany:{jobs[-1]}"] if jobs else []
            jobs.append(commands.sbatch(found.kept.script, *after))
            found.kept.submit(jobs, found.runs)
    except UsageError:
        commands.cancel(*map(str, jobs))
        raise
    return jobs


def described(found: Plan, script: Script, jobs: list[int]) -> dict[str, Any]:
    """What came of a submission."""
    log = f"{found.log}-{jobs[0] if jobs else 'ID'}{'_0' if found.submission.sweep else ''}.out"
    return {
        "job": jobs[0] if jobs else None,
        "jobs": jobs,
        "run": str(found.runs[0]),
        "runs": [str(run) for run in found.runs],
        "log": log,
        "script": script.text() if not jobs else str(found.kept.script),
        "commands": found.commands(),
    }
