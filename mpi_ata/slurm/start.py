"""One start of a run in a Slurm job: refused where it would be in vain, watched, and brought to an end."""

import os
import time
from collections.abc import Callable
from dataclasses import replace

from mpi_ata.errors import RunError, UsageError
from mpi_ata.launch import allocated_cores
from mpi_ata.runfile.progress import Progress, read_progress
from mpi_ata.slurm import commands
from mpi_ata.slurm.batch import Batch, request_requeue, should_requeue
from mpi_ata.slurm.submission_dir import Attempt
from mpi_ata.slurm.watch import Watch

TO_BE_CONTINUED = 85
FRUITLESS = 3  # starts in a row that may begin at the same round


def carry_out(batch: Batch, tell: Callable[[str], None]) -> int:
    """Run until it is finished or its time is up; the exit code of the batch script."""
    try:
        return _carry_out(batch, tell)
    except (RunError, UsageError) as error:
        batch.kept.failure(batch.run).write_text(str(error))
        raise


def _carry_out(batch: Batch, tell: Callable[[str], None]) -> int:
    watch = Watch(batch, id := commands.own_id(), tell)
    before = read_progress(batch.run)
    if before.finished:
        tell(f"{batch.run} is finished already, after {before.rounds:,} rounds")
        return 0
    if batch.kept.stopped(batch.run).exists():
        tell(f"{batch.run} was stopped; to go on with it, submit it again with --resume")
        return TO_BE_CONTINUED
    check_progress(batch, before, id)
    batch.kept.failure(batch.run).unlink(missing_ok=True)
    attempt = Attempt(
        id or "", time.time(), allocated_cores(), before.rounds, os.environ.get("SLURM_JOB_NODELIST", "")
    )
    batch.kept.note(batch.run, attempt)
    with watch:
        code = watch.wait()
    word, exit_code = concluded(batch, watch, code, tell)
    batch.kept.note(batch.run, replace(attempt, ended=time.time(), end=word))
    return exit_code


def check_progress(batch: Batch, before: Progress, id: str | None) -> None:
    """Refuse to start again and again at the same round."""
    submitted = batch.kept.submitted().jobs
    attempts = batch.kept.attempts(batch.run)
    latest = [a for a in attempts if a.job == id or a.job.split("_")[0] in submitted]
    fruitless = latest[-FRUITLESS:]
    if len(fruitless) == FRUITLESS and all(attempt.rounds == before.rounds for attempt in fruitless):
        raise RunError(
            f"{FRUITLESS} starts in a row got no further than round {before.rounds:,}: see the log for why; "
            "if a round takes longer than the time limit, ask for more time"
        )


def concluded(batch: Batch, watch: Watch, code: int, tell: Callable[[str], None]) -> tuple[str, int]:
    """What became of a start: a word for the record, and the exit code of the batch script."""
    after = read_progress(batch.run)
    if after.finished:
        cancel_the_rest(batch)
        tell(f"finished after {after.rounds:,} rounds: {batch.run}")
        return "finished", 0
    failure = batch.kept.failure(batch.run)
    if failure.exists():
        cancel_the_rest(batch)
        return "failed", 2 if code == 2 else 1
    tell(f"saved at round {after.rounds:,}, not finished (the launcher ended with {code}): {batch.run}")
    if batch.kept.stopped(batch.run).exists():
        return "stopped", TO_BE_CONTINUED
    if watch.requeued:
        return "requeued", TO_BE_CONTINUED
    job = watch.ask()
    if job is None and batch.requeue:
        tell("Slurm cannot be asked to start it again: go on by hand with the same command")
    if job is None or not should_requeue(batch, job):
        return "left", TO_BE_CONTINUED
    return ("requeued" if request_requeue(job, tell) else "left"), TO_BE_CONTINUED


def cancel_the_rest(batch: Batch) -> None:
    """Take back the later Slurm jobs of a chain, which have nothing left to do."""
    own, chain = os.environ.get("SLURM_JOB_ID"), batch.kept.submitted().jobs
    if not batch.requeue and own in chain:
        commands.cancel(*chain[chain.index(own) + 1 :])
