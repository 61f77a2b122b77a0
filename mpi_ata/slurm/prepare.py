"""A submission, checked before it waits in a queue: its runs, files, script and commands."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mpi_ata.driver.output import OutputOptions
from mpi_ata.driver.plan import Plan, plan_run
from mpi_ata.errors import UsageError
from mpi_ata.job import build_parts, load_job
from mpi_ata.layout import ranks_for, workers_in
from mpi_ata.runfile.progress import is_finished
from mpi_ata.runfile.store import check_writable_path
from mpi_ata.slurm import commands
from mpi_ata.slurm.batch import warm_start_args
from mpi_ata.slurm.copies import Copies
from mpi_ata.slurm.exclude import without_bad_hosts
from mpi_ata.slurm.lead import SIGNAL, script_lead
from mpi_ata.slurm.quoting import check_text
from mpi_ata.slurm.script import Script
from mpi_ata.slurm.slurm_job import OVER
from mpi_ata.slurm.submission import Submission
from mpi_ata.slurm.submission_dir import SubmissionDir


@dataclass(frozen=True)
class PreparedSubmission:
    """A checked submission: where its runs are saved, and the plan of each."""

    submission: Submission
    run: Path  # or the name that the members of a sweep are numbered after
    plans: Sequence[Plan] = ()  # of each run
    notes: Sequence[str] = ()  # about nodes that are excluded, or could not be

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

    def copies(self) -> Copies:
        """Return where to copy the files that the runs need."""
        jobs = [
            # A run that is resumed may name files in an earlier copy, which is about to be replaced.
            load_job(self.submission.job, settings) if plan.earlier else plan.job
            for plan, settings in zip(self.plans, self.submission.members, strict=True)
        ]
        return Copies.of(jobs, self.dir.files)

    def script(self, copies: Copies) -> Script:
        """Return the batch script."""
        asked, sweep = self.submission, self.submission.sweep
        members = tuple(self._member_args(number, copies) for number in range(len(self.runs)))
        command = (sys.executable, "-P", "-m", "mpi_ata", *self._batch_args(copies))
        return Script(
            name=re.sub(r"[^\w.-]", "_", asked.job.stem, flags=re.ASCII),
            resources=asked.resources,
            workdir=Path.cwd(),
            log=self.dir.log,
            command=command if sweep else (*command, *members[0]),
            members=members if sweep else (),
            at_once=sweep.at_once if sweep else None,
            requeue=asked.chain is None,
            signal=asked.signal,
            lead=script_lead(asked.resources.time, asked.lead),
            source=self.dir.source if asked.source else None,
        )

    def _batch_args(self, copies: Copies) -> list[str]:
        """Return the arguments of mpi-ata that all runs share."""
        asked, sweep = self.submission, self.submission.sweep
        args = ["batch", str(copies.job), "--submission-dir", str(self.dir.path)]
        earlier = [path.absolute() for path in asked.warm_start]
        args += warm_start_args(earlier, asked.prior_weight, asked.any_problem)
        args += ["--accept-changes"] if asked.accept_changes else []
        args += ["--signal", asked.signal] if asked.signal != SIGNAL else []
        args += ["--lead", str(asked.lead)] if asked.lead is not None else []
        args += ["--no-requeue"] if asked.chain is not None else []
        return args + (["--siblings"] if sweep is not None and sweep.same_problem else [])

    def _member_args(self, number: int, copies: Copies) -> tuple[str, ...]:
        """Return the further arguments of one run."""
        settings = (*self.submission.members[number], *copies.settings[number])
        return ("--out", str(self.runs[number]), *(arg for text in settings for arg in ("--set", text)))

    def commands(self) -> list[list[str]]:
        """Return the sbatch commands; the ids in a chain are not known yet."""
        first = ["sbatch", "--parsable", str(self.dir.script)]
        later = ["sbatch", "--parsable", "--dependency=afterany:ID", str(self.dir.script)]
        return [first, *[later] * ((self.submission.chain or 1) - 1)]


def prepare(submission: Submission) -> PreparedSubmission:
    """Check a submission and decide what each of its runs is."""
    prepared = PreparedSubmission(submission, submission.run_file())
    check_paths(prepared)
    if submission.resume:
        check_resumable(prepared)
    else:
        check_not_existing(prepared)
    plans = plan_runs(prepared)
    submission = submission if submission.resources.sized else with_ranks(submission, plans)
    check_plans(submission, plans)
    resources, notes = without_bad_hosts(submission.resources, submission.exclude_slow)
    submission = replace(submission, resources=resources)
    return replace(prepared, submission=submission, plans=plans, notes=notes)


def check_paths(prepared: PreparedSubmission) -> None:
    """Reject paths that a script cannot contain, or where nothing can be read or written."""
    asked = prepared.submission
    for path in [prepared.run, *asked.warm_start, asked.source or ""]:
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
    """Reject runs that are finished, or that another Slurm job is still running."""
    if all(is_finished(run) for run in prepared.runs):
        raise UsageError(f"{prepared.runs[0]} is already finished: choose another --out for a new run")
    for id in prepared.dir.manifest().jobs:
        if any(job.state not in OVER for job in commands.jobs(id)):
            raise UsageError(f"Slurm job {id} is still running {prepared.run}: see mpi-ata status {id}")


def plan_runs(prepared: PreparedSubmission) -> list[Plan]:
    """Return the plan of each run, and check its warm start."""
    asked, plans = prepared.submission, []
    for run, settings in zip(prepared.runs, asked.members, strict=True):
        output = OutputOptions(run, True, asked.warm_start, asked.prior_weight, asked.any_problem)
        output = replace(output, accept_changes=asked.accept_changes)
        if not output.resumes():
            output.check_prior()
        plans.append(plan_run(asked.job, settings, output))
    return plans


def with_ranks(submission: Submission, plans: Sequence[Plan]) -> Submission:
    """Return the submission with as many ranks as the workers of its job need."""
    workers, *others = {plan.job.run.workers for plan in plans}
    if workers is None or others:
        differ = "the runs of --array differ in run.workers"
        why = differ if others else f"{submission.job} has no run.workers"
        raise UsageError(f"{why}: set --ntasks, the number of ranks to start, manager included")
    return replace(submission, resources=replace(submission.resources, ntasks=ranks_for(workers)))


def check_plans(asked: Submission, plans: Sequence[Plan]) -> None:
    """Reject jobs that could not run; a problem that several runs in a row share is built once."""
    if not asked.check:
        return
    problem, built_from, ranks = None, "", asked.resources.ranks
    for job in [plan.job for plan in plans]:
        workers = workers_in(ranks) if ranks is not None else job.run.workers
        key = repr((job.tables["problem"], job.source.files.get("problem.file"), job.run.seed))
        try:
            problem = build_parts(job, workers or 1, problem if key == built_from else None).problem
        except UsageError as error:
            raise UsageError(f"{error} (to check it on the nodes only, use --no-check)") from None
        built_from = key
