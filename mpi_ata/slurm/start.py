"""One start of a run in a Slurm job: checked, watched, and recorded."""

import os
import time
from dataclasses import replace

from mpi_ata.errors import CONTINUE, RunError, UsageError
from mpi_ata.launch import allocated_cores, slurm_job
from mpi_ata.runfile.hosts import ended_by_loss
from mpi_ata.runfile.progress import Progress, read_progress
from mpi_ata.slurm import commands
from mpi_ata.slurm.at_fault import exclude_at_fault, recorded_events
from mpi_ata.slurm.batch import Batch, Echo, request_requeue, should_requeue
from mpi_ata.slurm.submission_dir import Attempt
from mpi_ata.slurm.watch import Watch

MAX_STALLED = 3  # starts in a row that begin at the same round


def run_batch(batch: Batch, echo: Echo) -> int:
    """Run until the run is finished or its time is up, and return the exit code of the batch script."""
    try:
        return start(batch, echo)
    except (RunError, UsageError) as error:
        batch.failure_file.write_text(str(error))
        raise


def start(batch: Batch, echo: Echo) -> int:
    """Start the ranks unless there is nothing to do, and wait for their end."""
    watch = Watch(batch, id := slurm_job(), echo)
    before = read_progress(batch.run, verified=True)
    if before.finished:
        echo(f"{batch.run} is already finished, after {before.rounds:,} rounds")
        return 0
    if batch.stopped:
        echo(f"{batch.run} was stopped; to resume it, submit it again with --resume")
        return CONTINUE
    check_progress(batch, before, id)
    batch.failure_file.unlink(missing_ok=True)
    attempt = new_attempt(id, before)
    batch.submission_dir.record_attempt(batch.run, attempt)
    with watch:
        code = watch.wait()
    end, exit_code = conclude(batch, watch, code, attempt.began, echo)
    batch.submission_dir.record_attempt(batch.run, replace(attempt, ended=time.time(), end=end))
    return exit_code


def new_attempt(id: str | None, before: Progress) -> Attempt:
    """Return the record of a start that begins now."""
    nodes = os.environ.get("SLURM_JOB_NODELIST", "")
    return Attempt(id or "", time.time(), allocated_cores(), before.rounds, nodes)


def check_progress(batch: Batch, before: Progress, id: str | None) -> None:
    """Reject one more start at a round that several starts in a row did not get beyond."""
    submitted = batch.submission_dir.manifest().jobs
    attempts = batch.submission_dir.attempts(batch.run)
    latest = [a for a in attempts if a.job == id or a.job.split("_")[0] in submitted][-MAX_STALLED:]
    if len(latest) == MAX_STALLED and all(attempt.rounds == before.rounds for attempt in latest):
        stalled = f"{MAX_STALLED} starts in a row got no further than round {before.rounds:,}"
        advice = "see the log for why; if a round takes longer than the time limit, ask for more time"
        raise RunError(f"{stalled}: {advice}")


def conclude(batch: Batch, watch: Watch, code: int, began: float, echo: Echo) -> tuple[str, int]:
    """Return how a start ended, for its record, and the exit code of the batch script; requeue if needed."""
    after = read_progress(batch.run, verified=True)
    if after.finished:
        cancel_rest_of_chain(batch)
        echo(f"finished after {after.rounds:,} rounds: {batch.run}")
        return "finished", 0
    if batch.failure_file.exists() and not ended_by_loss(recorded_events(batch.run), since=began):
        cancel_rest_of_chain(batch)
        return "failed", 2 if code == 2 else 1
    echo(f"saved at round {after.rounds:,}, not finished (the launcher exited with {code}): {batch.run}")
    if batch.stopped:
        return "stopped", CONTINUE
    if not (watch.requeued or requeue_if_allowed(batch, watch, echo)):
        return "left", CONTINUE
    if job := watch.slurm_job():
        exclude_at_fault(batch.run, watch.host_that_ended_ranks(), job, echo)
    return "requeued", CONTINUE


def requeue_if_allowed(batch: Batch, watch: Watch, echo: Echo) -> bool:
    """Requeue an unfinished run if that is wanted, and return whether Slurm accepted it."""
    job = watch.slurm_job()
    if job is None:
        if batch.requeue:
            echo("Slurm cannot be asked to requeue this job: resume it with the same command")
        return False
    return should_requeue(batch, job) and request_requeue(job, echo)


def cancel_rest_of_chain(batch: Batch) -> None:
    """Cancel the later Slurm jobs of a chain, which have nothing left to do."""
    own, chain = os.environ.get("SLURM_JOB_ID"), batch.submission_dir.manifest().jobs
    if not batch.requeue and own in chain:
        commands.cancel(*chain[chain.index(own) + 1 :])
