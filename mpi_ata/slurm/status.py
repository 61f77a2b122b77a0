"""How far submitted runs are, and ending them for good."""

import time
from typing import Any

from mpi_ata.runfile.progress import Progress, is_finished, read_progress
from mpi_ata.slurm import commands
from mpi_ata.slurm.slurm_job import ACTIVE, WAITING
from mpi_ata.slurm.submission_dir import billed_core_seconds
from mpi_ata.slurm.submitted_runs import SubmittedRun, find_runs


def status(which: str | None = None) -> list[dict[str, Any]]:
    """Return a row for each run of a Slurm job, of a run file, or of all submissions."""
    return [status_row(found) for found in find_runs(which)]


def status_from_files(which: str | None = None) -> list[dict[str, Any]]:
    """Return the same without asking Slurm; the state of unfinished runs is then unknown."""
    rows = [status_row(found) for found in find_runs(which, ask_slurm=False)]
    unknown = {"state": "unknown", "why": "Slurm does not answer"}
    return [row if row["state"] == "finished" else row | unknown for row in rows]


def stop(which: str) -> list[dict[str, Any]]:
    """End runs for good: running ones save and leave, waiting ones are cancelled."""
    found = find_runs(which)
    for run in found:  # all of them first: no run that ends from now on is requeued
        if not is_finished(run.run):
            run.submission_dir.stop_file(run.run).touch()
    for run in found:
        stop_jobs(run)
    return status(which)


def stop_jobs(found: SubmittedRun) -> None:
    """Cancel the waiting Slurm jobs of a run, and ask the running one to save and leave."""
    for job in found.jobs:
        if job.state in WAITING:
            commands.cancel(found.member_id(job.id))
        elif job.state == "RUNNING":
            commands.signal_batch(found.member_id(job.id), "TERM")


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
    if progress.finished:
        return "finished", ""
    if job is not None and job.state in ACTIVE:
        return "running", "asked to stop" if stopped else progress.trouble
    if job is not None and job.state in WAITING:
        return "queued", "" if job.reason == "None" else job.reason
    if failure.exists():
        return "failed", failure.read_text().strip()
    if stopped:
        return "stopped", "by mpi-ata stop"
    if progress.failure:
        return "failed", progress.failure
    return "unfinished", f"Slurm says {job.state}" if job else "no Slurm job is running it any more"


def expected_end(progress: Progress) -> float | None:
    """Return when all rounds will be done at the rate so far, in seconds since 1970."""
    if progress.limit is None or not progress.rate or progress.saved is None:
        return None
    return progress.saved + (progress.limit - progress.rounds) / progress.rate
