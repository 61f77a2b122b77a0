"""How far submitted runs are, and ending them for good."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from mpi_ata.batch.interface import QueuedJob, scheduler
from mpi_ata.batch.submission_dir import SUFFIX, SubmissionDir, billed_core_seconds, find_submissions
from mpi_ata.errors import UsageError
from mpi_ata.runfile.checkpoints import RUNS
from mpi_ata.runfile.progress import Progress, read_progress

Query = Callable[[str], list[QueuedJob]]  # returns the batch jobs of an id


class SubmittedRun(NamedTuple):
    """A submitted run, and the batch jobs that run it or ran it."""

    submission_dir: SubmissionDir
    run: Path
    member: int | None  # of an array
    jobs: list[QueuedJob]

    @property
    def job(self) -> QueuedJob | None:
        """Return the batch job that says most: an active one, else a waiting one, else the last."""
        weights = {"running": 2, "suspended": 2, "held": 2, "waiting": 1}
        return max(reversed(self.jobs), key=lambda job: weights.get(job.phase, 0), default=None)

    def member_id(self, id: str) -> str:
        """Return what the scheduler calls this run's part of a batch job."""
        return id if self.member is None else scheduler().member_id(id, self.member)


def find_runs(which: str | None, ask: bool = True) -> list[SubmittedRun]:
    """Return the runs that the user named, or all; without asking the scheduler, those recorded in runs/."""
    query, queued = scheduler().jobs, list[QueuedJob]()
    if which is None or not ask:
        queued = [job for id in scheduler().queued_ids() for job in query(id)] if ask else []
        query = partial(matching_jobs, queued)
    submissions = all_submissions(queued) if which is None else submissions_of(which, query)
    if ask and which is not None and not submissions:
        name = scheduler().NAME
        forgotten = f"was not submitted by mpi-ata, or {name} has forgotten it: name its run file"
        never = f"{which} is neither the id of a {name} job nor a run that was submitted"
        if Path(which).is_file():
            never = f"{which} was not submitted: mpi-ata show and mpi-ata watch say how far it is"
        raise UsageError(f"{name} job {which} {forgotten}" if scheduler().is_id(which) else never)
    found = [run for each in submissions for run in runs_in(each, query)]
    return [run for run in found if which is None or is_named(run, which)]


def is_named(found: SubmittedRun, which: str) -> bool:
    """Return whether a run of the right submission is the one that the user named, or one of several."""
    if not scheduler().is_id(which):
        return Path(which).absolute() in (found.run, sweep_file(found.run))
    members = scheduler().members(which)
    return not members or found.member in members or which in found.submission_dir.manifest().jobs


def matching_jobs(jobs: Sequence[QueuedJob], id: str) -> list[QueuedJob]:
    """Return the batch jobs with this id: a single one, or all members of an array."""
    return [job for job in jobs if id in (job.id, scheduler().array_id(job.id))]


def all_submissions(queued: Sequence[QueuedJob]) -> list[SubmissionDir]:
    """Return all submissions in runs/, and those elsewhere that are queued."""
    here = find_submissions(RUNS)
    elsewhere = {job.script.parent for job in queued if job.script.parent.suffix == SUFFIX}
    elsewhere -= {each.path.absolute() for each in here}
    return here + [SubmissionDir(path) for path in sorted(elsewhere)]


def submissions_of(which: str, query: Query) -> list[SubmissionDir]:
    """Return the submissions of a batch job or a run file."""
    array_id = scheduler().array_id
    if not scheduler().is_id(which):
        path = Path(which).absolute()
        places = [SubmissionDir.of_run(run) for run in (path, sweep_file(path))]
        return [place for place in places if place.exists()][:1]
    scripts = [SubmissionDir(job.script.parent) for job in query(array_id(which))[:1]]
    if found := [place for place in scripts if place.exists()]:
        return found
    known = [(each, each.manifest()) for each in find_submissions(RUNS)]
    return [each for each, m in known if array_id(which) in map(array_id, [*m.jobs, *m.past])]


def runs_in(submission: SubmissionDir, query: Query) -> Iterator[SubmittedRun]:
    """Yield each run of a submission, and the batch jobs that run it or ran it."""
    known = submission.manifest()
    started = [attempts[-1].job for run in known.runs if (attempts := submission.attempts(run))]
    # Started with sbatch by hand, or by an earlier submission.
    others = [job for job in started if job and scheduler().array_id(job) not in known.jobs]
    jobs = [job for id in dict.fromkeys([*others, *known.jobs]) for job in query(id)]
    if len(known.runs) == 1:
        yield SubmittedRun(submission, known.runs[0], None, jobs)
        return
    for number, run in enumerate(known.runs):
        own = [job for job in jobs if number in scheduler().members(job.id)]
        yield SubmittedRun(submission, run, number, own)


def sweep_file(run: Path) -> Path:
    """Return the name that the members of a sweep are numbered after."""
    return run.with_stem(re.sub(r"-\d+$", "", run.stem))


def status(which: str | None = None, ask: bool = True) -> list[dict[str, Any]]:
    """Return a row for each run of a batch job, of a run file, or of all submissions.

    Without asking the scheduler, the state of unfinished runs is unknown.
    """
    rows = [status_row(found) for found in find_runs(which, ask)]
    unknown = {"state": "unknown", "why": f"{scheduler().NAME} does not answer"}
    return [row if ask or row["state"] == "finished" else row | unknown for row in rows]


def stop(which: str) -> list[dict[str, Any]]:
    """End runs for good: running ones save and leave, waiting ones are cancelled."""
    found = find_runs(which)
    for run in found:  # all of them first: no run that ends from now on is requeued
        if not run.submission_dir.is_finished(run.run):
            run.submission_dir.stop_file(run.run).touch()
    for run in found:
        stop_jobs(run)
    return status(which)


def stop_jobs(found: SubmittedRun) -> None:
    """Cancel the waiting batch jobs of a run, and ask the running one to save and leave.

    One that is suspended, which no signal reaches, finds the stop file once it is resumed.
    """
    for job in found.jobs:
        if job.phase == "waiting":
            scheduler().cancel(found.member_id(job.id))
        elif job.phase == "running":
            scheduler().signal(found.member_id(job.id), "TERM")


def status_row(found: SubmittedRun) -> dict[str, Any]:
    """Return how far a run is, in plain values."""
    progress, attempts = read_progress(found.run), found.submission_dir.attempts(found.run)
    state, why = state_of(found, progress)
    running, job = state == "running", found.job
    last_seen = time.time() if running else progress.saved
    ids = [job.id] if job else list(found.submission_dir.manifest().jobs)
    return {
        "job": found.member_id(ids[-1]) if ids else None,
        "state": state,
        "why": why,
        "run": str(found.run),
        "rounds": progress.rounds,
        "of_rounds": progress.limit,
        "rate": progress.rate or None,
        "expected_end": expected_end(progress) if running else None,
        "starts": len(attempts),
        "nodes": job.nodes if job and running else None,
        "elapsed": progress.elapsed,
        "billed_core_hours": billed_core_seconds(attempts, last_seen) / 3600,
        "worker_hours": progress.worker_time / 3600,
    }


def state_of(found: SubmittedRun, progress: Progress) -> tuple[str, str]:
    """Return the state of a run in one word, and the reason for it."""
    job, stopped = found.job, found.submission_dir.stop_file(found.run).exists()
    failure = found.submission_dir.failure_file(found.run)
    if found.submission_dir.is_finished(found.run, progress.finished):
        return "finished", ""
    if job is not None and job.phase in ("running", "suspended", "held"):
        state = "suspended" if job.phase == "suspended" else "running"
        return state, "asked to stop" if stopped else progress.trouble
    if job is not None and job.phase == "waiting":
        return "queued", "" if job.reason == "None" else job.reason
    if failure.exists():
        return "failed", failure.read_text().strip()
    if stopped:
        return "stopped", "by mpi-ata stop"
    if progress.failure:
        return "failed", progress.failure
    name = scheduler().NAME
    return "stopped", f"{name} says {job.state}" if job else f"no {name} job is running it any more"


def expected_end(progress: Progress) -> float | None:
    """Return when all rounds will be done at the rate so far, in seconds since 1970."""
    if progress.limit is None or not progress.rate or progress.saved is None:
        return None
    return progress.saved + (progress.limit - progress.rounds) / progress.rate
