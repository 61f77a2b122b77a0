"""Submitting a job: its files are copied, its script written, and handed to the scheduler."""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpi_ata.batch.bad_nodes import without_bad_hosts
from mpi_ata.batch.interface import SIGNAL, Script, check_text, scheduler
from mpi_ata.batch.submission import Submission, output_args, script_text, setting_args
from mpi_ata.batch.submission_dir import SubmissionDir
from mpi_ata.driver.plan import Plan, plan_run
from mpi_ata.errors import RunError, UsageError
from mpi_ata.job import Job, build_parts, load_job
from mpi_ata.job.tables import user_files
from mpi_ata.job.user_code import local_imports
from mpi_ata.layout import ranks_for, workers_in
from mpi_ata.runfile.checkpoints import fresh_name
from mpi_ata.runfile.progress import is_finished
from mpi_ata.runfile.store import check_writable_path


@dataclass(frozen=True)
class JobCopy:
    """A job file, the files that it names, and the modules next to Python files that these import."""

    targets: dict[Path, Path]  # the copy of each file
    job: Path  # the copy of the job file
    settings: tuple[tuple[str, ...], ...]  # per member of a sweep: paths that must point to the copies

    @classmethod
    def of(cls, members: Sequence[Job], to: Path) -> "JobCopy":
        """Return where to copy the files of a job, under the settings of each of its members."""
        job, to = resolve_parent(members[0].path), to.absolute()
        named = [user_files(member.tables) for member in members]
        sources = {file: resolve_parent(job.parent / file) for files in named for file in files.values()}
        found = {job}.union(*map(local_imports, sources.values()))
        root = Path(os.path.commonpath([path.parent for path in found]))
        targets = {path: to / path.relative_to(root) for path in sorted(found)}
        settings = [tuple(path_settings(files, targets[job], sources, targets)) for files in named]
        return cls(targets, targets[job], tuple(settings))

    def make(self) -> None:
        """Copy all files."""
        for source, target in self.targets.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def path_settings(
    files: dict[str, str], job: Path, sources: dict[str, Path], targets: dict[Path, Path]
) -> Iterator[str]:
    """Yield settings for files that the copied job would look for elsewhere, such as absolute paths."""
    for name, file in files.items():
        target = targets[sources[file]]
        if os.path.normpath(job.parent / file) != str(target):
            yield f"{name}={json.dumps(str(target))}"


def resolve_parent(path: Path) -> Path:
    """Return an absolute path whose folders are no links, though the file itself may be one."""
    return path.parent.resolve() / path.name


@dataclass(frozen=True)
class PreparedSubmission:
    """A checked submission: where its runs are saved, and the plan of each."""

    submission: Submission
    run: Path  # or the name that the members of a sweep are numbered after
    plans: Sequence[Plan] = ()  # of each run
    notes: Sequence[str] = ()  # about the number of ranks, and nodes that are excluded

    @property
    def dir(self) -> SubmissionDir:
        """Return the folder of this submission."""
        return SubmissionDir.of_run(self.run)

    @property
    def runs(self) -> list[Path]:
        """Return the file of each run."""
        if self.submission.sweep is None:
            return [self.run]
        return [self.run.with_stem(f"{self.run.stem}-{j}") for j in range(len(self.submission.members))]

    def job_copy(self) -> JobCopy:
        """Return where to copy the files that the runs need."""
        jobs = [
            # A run that is resumed may name files in an earlier copy, which is about to be replaced.
            load_job(self.submission.job, settings) if plan.earlier else plan.job
            for plan, settings in zip(self.plans, self.submission.members, strict=True)
        ]
        return JobCopy.of(jobs, self.dir.files)

    def script(self, copy: JobCopy) -> Script:
        """Return the batch script."""
        asked, sweep = self.submission, self.submission.sweep
        settings = [(*own, *more) for own, more in zip(asked.members, copy.settings, strict=True)]
        members = [
            ("--out", str(run), *setting_args(own)) for run, own in zip(self.runs, settings, strict=True)
        ]
        command = (sys.executable, "-P", "-m", "mpi_ata", *self._batch_args(copy))
        return Script(
            name=re.sub(r"[^\w.-]", "_", asked.job.stem, flags=re.ASCII),
            resources=asked.resources,
            workdir=Path.cwd(),
            log=self.dir.log,
            command=command if sweep else (*command, *members[0]),
            members=tuple(members) if sweep else (),
            at_once=sweep.at_once if sweep else None,
            requeue=asked.chain is None,
            signal=asked.signal,
            lead=asked.script_lead,
            source=self.dir.source if asked.source else None,
        )

    def _batch_args(self, copy: JobCopy) -> list[str]:
        """Return the arguments of mpi-ata that all runs share."""
        asked, sweep = self.submission, self.submission.sweep
        earlier = tuple(path.absolute() for path in asked.output.warm_start)
        shared = replace(asked.output, out=None, resume=False, warm_start=earlier)
        args = ["batch", str(copy.job), "--submission-dir", str(self.dir.path), *output_args(shared)]
        args += ["--signal", asked.signal] if asked.signal != SIGNAL else []
        args += ["--lead", str(asked.lead)] if asked.lead is not None else []
        args += ["--no-requeue"] if asked.chain is not None else []
        return args + (["--siblings"] if sweep is not None and sweep.same_problem else [])

    def commands(self) -> list[list[str]]:
        """Return the commands that submit it; the ids in a chain are not known yet."""
        later = (self.submission.chain or 1) - 1
        return [scheduler().submit_command(self.dir.script, after) for after in ["", *["ID"] * later]]


def prepare(submission: Submission) -> PreparedSubmission:
    """Check a submission and decide what each of its runs is."""
    run = (submission.output.out or fresh_name(submission.job)).absolute()
    prepared = PreparedSubmission(submission, run)
    check_paths(prepared)
    if submission.output.resume:
        check_resumable(prepared)
    else:
        check_not_existing(prepared)
    plans = plan_runs(prepared)
    resources, notes = submission.resources, list[str]()
    if not scheduler().is_sized(resources):
        resources = replace(resources, ntasks=needed_ranks(submission, plans))
        notes.append(f"no --ntasks given: using {resources.ntasks}, the job's run.workers plus the manager")
    check_plans(submission, plans, resources.ranks)
    resources, more = without_bad_hosts(resources, submission.exclude_slow)
    submission = replace(submission, resources=resources)
    return replace(prepared, submission=submission, plans=plans, notes=[*notes, *more])


def check_paths(prepared: PreparedSubmission) -> None:
    """Reject paths that a script cannot contain, or where nothing can be read or written."""
    asked = prepared.submission
    for path in [prepared.run, *asked.output.warm_start, asked.source or ""]:
        check_text(str(path))
    if asked.source is not None and not asked.source.is_file():
        raise UsageError(f"--source {asked.source} is not a file")
    existing = next(path for path in prepared.run.parents if path.exists())
    check_writable_path(existing / prepared.run.name)


def check_not_existing(prepared: PreparedSubmission) -> None:
    """Reject a submission that would overwrite a run."""
    for path in [*prepared.runs, prepared.dir.path]:
        if path.exists():
            raise UsageError(f"{path} exists: resume it with --resume, or choose another --out")


def check_resumable(prepared: PreparedSubmission) -> None:
    """Reject runs that are finished, or that another batch job is still running."""
    if all(is_finished(run) for run in prepared.runs):
        raise UsageError(f"{prepared.runs[0]} is already finished: choose another --out for a new run")
    for id in prepared.dir.manifest().jobs:
        if any(job.phase != "over" for job in scheduler().jobs(id)):
            name = scheduler().NAME
            raise UsageError(f"{name} job {id} is still running {prepared.run}: see mpi-ata status {id}")


def plan_runs(prepared: PreparedSubmission) -> list[Plan]:
    """Return the plan of each run, and check its warm start."""
    asked, plans = prepared.submission, []
    for run, settings in zip(prepared.runs, asked.members, strict=True):
        output = replace(asked.output, out=run, resume=True)
        if not output.resumes():
            output.check_prior()
        plans.append(plan_run(asked.job, settings, output))
    return plans


def needed_ranks(submission: Submission, plans: Sequence[Plan]) -> int:
    """Return how many ranks the workers of a job and its manager need."""
    workers, *others = {plan.job.run.workers for plan in plans}
    if workers is None or others:
        differ = "the runs of --array differ in run.workers"
        why = differ if others else f"{submission.job} has no run.workers"
        raise UsageError(f"{why}: set --ntasks, the number of ranks to start, manager included")
    return ranks_for(workers)


def check_plans(asked: Submission, plans: Sequence[Plan], ranks: int | None) -> None:
    """Reject jobs that could not run; a problem that several runs in a row share is built once."""
    if not asked.check:
        return
    problem, built_from = None, ""
    for job in [plan.job for plan in plans]:
        workers = workers_in(ranks) if ranks is not None else job.run.workers
        key = repr((job.tables["problem"], job.files.get("problem.file"), job.run.seed))
        try:
            problem = build_parts(job, workers or 1, problem if key == built_from else None).problem
        except UsageError as error:
            raise UsageError(f"{error} (to check it on the nodes only, use --no-check)") from None
        built_from = key


def submit(submission: Submission, dry_run: bool = False) -> dict[str, Any]:
    """Submit a job and return what was submitted, or would be, in plain values."""
    prepared = prepare(submission)
    copy = prepared.job_copy()
    script = script_text(prepared.script(copy))
    if dry_run:
        return describe_submission(prepared, script, [])
    ids = write_and_submit(prepared, copy, script)
    return describe_submission(prepared, str(prepared.dir.script), ids)


def write_and_submit(prepared: PreparedSubmission, copy: JobCopy, script: str) -> list[str]:
    """Write the folder of a submission and submit its script; a failure leaves no new folder behind."""
    folder = prepared.dir.path
    fresh = not folder.exists()
    try:
        write_files(prepared, copy, script)
        return submit_chain(prepared)
    except BaseException as error:
        if fresh:
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise UsageError(f"{folder} cannot be written: {error.strerror}") from None
        raise


def write_files(prepared: PreparedSubmission, copy: JobCopy, script: str) -> None:
    """Write what the runs need; of an earlier submission, only the record of its starts remains."""
    shutil.rmtree(prepared.dir.files, ignore_errors=True)
    copy.make()
    if prepared.submission.source is not None:
        shutil.copyfile(prepared.submission.source, prepared.dir.source)
    prepared.dir.script.write_text(script)
    for run in prepared.runs:
        prepared.dir.clear(run)


def submit_chain(prepared: PreparedSubmission) -> list[str]:
    """Submit the script once, or once per batch job of a chain; cancel them all if one is not accepted."""
    ids: list[str] = []
    try:
        for _ in range(prepared.submission.chain or 1):
            ids.append(scheduler().submit(prepared.dir.script, after=ids[-1] if ids else ""))
            prepared.dir.record_jobs(ids, prepared.runs)
    except (UsageError, RunError) as error:
        scheduler().cancel(*ids)
        if isinstance(error, UsageError) or not ids:
            raise
        raise RunError(f"{error}; cancel the jobs accepted before that: {' '.join(ids)}") from None
    return ids


def describe_submission(prepared: PreparedSubmission, script: str, ids: list[str]) -> dict[str, Any]:
    """Return what was submitted, in plain values."""
    jobs = [int(id) if id.isdigit() else id for id in ids]
    member = "_0" if prepared.submission.sweep else ""
    return {
        "job": jobs[0] if jobs else None,
        "jobs": jobs,
        "ranks": prepared.submission.resources.ranks,
        "run": str(prepared.runs[0]),
        "runs": [str(run) for run in prepared.runs],
        "log": f"{prepared.dir.log}-{jobs[0] if jobs else 'ID'}{member}.out",
        "script": script,
        "commands": prepared.commands(),
        "excluded": list(prepared.submission.resources.exclude),
        "notes": list(prepared.notes),
    }
