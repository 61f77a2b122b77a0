"""Submitting a job: its files are copied, its script written, and sbatch called."""

import shutil
from typing import Any

from mpi_ata.errors import RunError, UsageError
from mpi_ata.slurm import commands
from mpi_ata.slurm.copies import Copies
from mpi_ata.slurm.prepare import PreparedSubmission, prepare
from mpi_ata.slurm.submission import Submission


def submit(submission: Submission, dry_run: bool = False) -> dict[str, Any]:
    """Submit a job and return what was submitted, or would be, in plain values."""
    prepared = prepare(submission)
    copies = prepared.copies()
    script = prepared.script(copies).text()
    if dry_run:
        return describe_submission(prepared, script, [])
    jobs = write_and_sbatch(prepared, copies, script)
    return describe_submission(prepared, str(prepared.dir.script), jobs)


def write_and_sbatch(prepared: PreparedSubmission, copies: Copies, script: str) -> list[int]:
    """Write the folder of a submission and call sbatch; a failure leaves no new folder behind."""
    folder = prepared.dir.path
    fresh = not folder.exists()
    try:
        write_files(prepared, copies, script)
        return sbatch_all(prepared)
    except BaseException as error:
        if fresh:
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise UsageError(f"{folder} cannot be written: {error.strerror}") from None
        raise


def write_files(prepared: PreparedSubmission, copies: Copies, script: str) -> None:
    """Write what the runs need; of an earlier submission, only the record of its starts remains."""
    shutil.rmtree(prepared.dir.files, ignore_errors=True)
    copies.make()
    if prepared.submission.source is not None:
        shutil.copyfile(prepared.submission.source, prepared.dir.source)
    prepared.dir.script.write_text(script)
    for run in prepared.runs:
        prepared.dir.clear(run)


def sbatch_all(prepared: PreparedSubmission) -> list[int]:
    """Submit the script once, or once per Slurm job of a chain; cancel them all if one is not accepted."""
    jobs: list[int] = []
    try:
        for _ in range(prepared.submission.chain or 1):
            after = [f"--dependency=afterany:{jobs[-1]}"] if jobs else []
            jobs.append(commands.sbatch(prepared.dir.script, *after))
            prepared.dir.record_jobs([str(job) for job in jobs], prepared.runs)
    except (UsageError, RunError) as error:
        ids = list(map(str, jobs))
        commands.cancel(*ids)
        if isinstance(error, UsageError) or not ids:
            raise
        accepted = f"it had accepted jobs before that: cancel them with scancel {' '.join(ids)}"
        raise RunError(f"{error}; {accepted}") from None
    return jobs


def describe_submission(prepared: PreparedSubmission, script: str, jobs: list[int]) -> dict[str, Any]:
    """Return what was submitted, in plain values."""
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
