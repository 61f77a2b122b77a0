"""Finding submitted runs: by the id of a Slurm job, by a run file, or all of them."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mpi_ata.errors import UsageError
from mpi_ata.runfile.checkpoints import RUNS
from mpi_ata.slurm import commands
from mpi_ata.slurm.slurm_job import ACTIVE, WAITING, SlurmJob, array_members
from mpi_ata.slurm.submission_dir import SUFFIX, SubmissionDir, find_submissions

Query = Callable[[str], list[SlurmJob]]  # returns the Slurm jobs of an id


class SubmittedRun(NamedTuple):
    """A submitted run, and the Slurm jobs that run it or ran it."""

    submission_dir: SubmissionDir
    run: Path
    member: int | None  # of an array
    jobs: list[SlurmJob]

    @property
    def job(self) -> SlurmJob | None:
        """Return the Slurm job that says most: an active one, else a waiting one, else the last."""
        ranked = [
            (2 if job.state in ACTIVE else 1 if job.state in WAITING else 0, j)
            for j, job in enumerate(self.jobs)
        ]
        return self.jobs[max(ranked)[1]] if ranked else None

    def member_id(self, id: str) -> str:
        """Return what Slurm calls this run's part of a Slurm job."""
        return id if self.member is None else f"{id.split('_')[0]}_{self.member}"


def find_runs(which: str | None, ask_slurm: bool = True) -> list[SubmittedRun]:
    """Return the runs that the user named, or all; without Slurm, only those recorded in runs/."""
    if which is None:
        queued = [job for id in commands.queued_ids() for job in commands.jobs(id)] if ask_slurm else []
        known = partial(matching_jobs, queued)
        return [found for each in all_submissions(queued) for found in runs_in(each, known)]
    query: Query = commands.jobs if ask_slurm else partial(matching_jobs, ())
    submissions = submissions_of(which) if ask_slurm or not is_id(which) else recorded_submissions(which)
    found = [run for each in submissions for run in runs_in(each, query)]
    return [run for run in found if is_named(run, which)]


def is_named(found: SubmittedRun, which: str) -> bool:
    """Return whether a run of the right submission is the one that the user named, or one of several."""
    if which.isdigit():
        return True
    if hit := re.fullmatch(r"\d+_(\d+)", which):
        return found.member == int(hit[1]) or which in found.submission_dir.manifest().jobs
    return Path(which).absolute() in (found.run, sweep_file(found.run))


def matching_jobs(jobs: Sequence[SlurmJob], id: str) -> list[SlurmJob]:
    """Return the Slurm jobs with this id: a single one, or all members of an array."""
    return [job for job in jobs if id in (job.id, job.id.split("_")[0])]


def all_submissions(queued: Sequence[SlurmJob]) -> list[SubmissionDir]:
    """Return all submissions in runs/, and those elsewhere that are queued."""
    here = find_submissions(RUNS)
    elsewhere = {job.command.parent for job in queued if job.command.parent.suffix == SUFFIX}
    elsewhere -= {each.path.absolute() for each in here}
    return here + [SubmissionDir(path) for path in sorted(elsewhere)]


def submissions_of(which: str) -> list[SubmissionDir]:
    """Return the submissions of a Slurm job or a run file."""
    if is_id(which):
        return submissions_by_id(which)
    path = Path(which).absolute()
    for submission in (SubmissionDir.of_run(path), SubmissionDir.of_run(sweep_file(path))):
        if submission.exists():
            return [submission]
    raise UsageError(f"{which} is neither the id of a Slurm job nor a run that was submitted")


def is_id(which: str) -> bool:
    """Return whether this is the id of a Slurm job, or of a member of an array."""
    return re.fullmatch(r"\d+(_\d+)?", which) is not None


def submissions_by_id(id: str) -> list[SubmissionDir]:
    """Return the submissions of a Slurm job: from the folder of its script, or as recorded in runs/."""
    for job in commands.jobs(id.split("_")[0]):
        if (submission := SubmissionDir(job.command.parent)).exists():
            return [submission]
    found = recorded_submissions(id)
    if not found:
        why = "was not submitted by mpi-ata, or Slurm has forgotten it"
        raise UsageError(f"Slurm job {id} {why}: name its run file")
    return found


def recorded_submissions(id: str) -> list[SubmissionDir]:
    """Return the submissions in runs/ whose manifest has the id of a Slurm job."""
    manifests = [(each, each.manifest()) for each in find_submissions(RUNS)]
    array = id.split("_")[0]
    return [
        each
        for each, known in manifests
        if array in {job.split("_")[0] for job in [*known.jobs, *known.past]}
    ]


def runs_in(submission: SubmissionDir, query: Query) -> Iterator[SubmittedRun]:
    """Yield each run of a submission, and the Slurm jobs that run it or ran it."""
    known = submission.manifest()
    started = [attempts[-1].job for run in known.runs if (attempts := submission.attempts(run))]
    # Started with sbatch by hand, or by an earlier submission.
    others = [job for job in started if job and job.split("_")[0] not in known.jobs]
    jobs = [job for id in dict.fromkeys([*others, *known.jobs]) for job in query(id)]
    if len(known.runs) == 1:
        yield SubmittedRun(submission, known.runs[0], None, jobs)
        return
    for number, run in enumerate(known.runs):
        yield SubmittedRun(submission, run, number, [job for job in jobs if number in array_members(job.id)])


def sweep_file(run: Path) -> Path:
    """Return the name that the members of a sweep are numbered after."""
    return run.with_stem(re.sub(r"-\d+$", "", run.stem))
