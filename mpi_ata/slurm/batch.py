"""What the batch script becomes: starts the ranks, passes signals on, and asks Slurm for more time."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpi_ata import launch
from mpi_ata.errors import RunError, UsageError
from mpi_ata.job import load_job
from mpi_ata.slurm import commands
from mpi_ata.slurm.commands import SlurmJob
from mpi_ata.slurm.kept import SUFFIX, Attempt, Kept, copy_files, replace_text
from mpi_ata.slurm.launcher import launcher
from mpi_ata.slurm.progress import Progress, progress
from mpi_ata.slurm.script import LEAD

TO_BE_CONTINUED = 85
FRUITLESS = 3  # starts in a row that may begin at the same round
SIGNAL = "MPI_ATA_SIGNAL"  # in their environment: the signal that asks them to save and leave
LOOK = 0.2  # seconds between looks at the launcher
EARLIEST = 2.0 * LEAD + 30  # seconds before the end: the earliest that Slurm warns of it
MARGIN = 10.0  # seconds that ending all ranks and asking Slurm may take, beside round and save


@dataclass(frozen=True)
class Batch:
    """What is to be run in this Slurm job."""

    job: Path
    run: Path
    kept: Kept
    settings: tuple[str, ...] = ()
    warm_start: tuple[str, ...] = ()
    siblings: bool = False  # whether finished runs of the same sweep are to be learned from
    requeue: bool = True
    signal: str = "USR1"
    lead: int | None = None  # seconds before the end of the Slurm job; None: from what was measured

    def command(self) -> list[str]:
        """What starts the ranks."""
        settings = [word for setting in self.settings for word in ("--set", setting)]
        words = ["run", str(self.job), "--out", str(self.run), "--resume", *settings, *self.warm_words()]
        several = (launch.slurm_tasks() or 1) > 1
        return [*(launcher() if several else ()), *launch.rank_command(words)]

    def warm_words(self) -> list[str]:
        """Whom to learn speeds from; a run that goes on has done so already."""
        if self.run.exists():
            return []
        sweep = sorted(self.run.parent.glob(f"{self.kept.folder.stem}-*.h5")) if self.siblings else []
        finished = [str(path) for path in sweep if path != self.run and progress(path).finished]
        return [word for path in [*self.warm_start, *finished] for word in ("--warm-start", path)]


def prepared(
    job: Path, run: Path | None, folder: Path | None, settings: tuple[str, ...], **options: Any
) -> Batch:
    """What a batch script asks for; one that was not written by mpi-ata is served from a copy as well."""
    if run is not None and folder is not None:
        return Batch(job, run, Kept(folder), settings, **options)
    run = run or Path("runs") / f"{job.stem}-{commands.own_id() or 'local'}.h5"
    kept = Kept(run.with_suffix(SUFFIX))
    copied, *settings_of_copy = copied_once(job, settings, kept)
    if not kept.submitted():
        ids = [os.environ[name] for name in ("SLURM_ARRAY_JOB_ID", "SLURM_JOB_ID") if name in os.environ]
        kept.submit([int(id) for id in ids[:1]], [run.absolute()])
    return Batch(Path(copied), run, kept, (*settings, *settings_of_copy), **options)


def copied_once(job: Path, settings: tuple[str, ...], kept: Kept) -> list[str]:
    """The copy of a job file, and settings that it needs; made when the job starts for the first time."""
    note = kept.folder / "copied.json"
    if not note.exists():
        kept.folder.mkdir(parents=True, exist_ok=True)
        load_job(job, settings)
        copy, more = copy_files(job, settings, kept.files)
        replace_text(note, json.dumps([str(copy), *more]))
    found: list[str] = json.loads(note.read_text())
    return found


def carry_out(batch: Batch, tell: Callable[[str], None]) -> int:
    """Run until it is finished or its time is up; the exit code of the batch script."""
    try:
        return _carry_out(batch, tell)
    except (RunError, UsageError) as error:
        batch.kept.failure(batch.run).write_text(str(error))
        raise


def _carry_out(batch: Batch, tell: Callable[[str], None]) -> int:
    before, id = progress(batch.run), commands.own_id()
    if before.finished:
        tell(f"{batch.run} is finished already, after {before.rounds:,} rounds")
        return 0
    if batch.kept.stopped(batch.run).exists():
        tell(f"{batch.run} was stopped; to go on with it, submit it again with --resume")
        return TO_BE_CONTINUED
    refuse_fruitless(batch, before, id)
    batch.kept.failure(batch.run).unlink(missing_ok=True)
    attempt = Attempt(
        id or "", time.time(), allocated_cores(), before.rounds, os.environ.get("SLURM_JOB_NODELIST", "")
    )
    batch.kept.note(batch.run, attempt)
    with Watch(batch, id, tell) as watch:
        code = watch.wait()
    word, exit_code = concluded(batch, watch, code, tell)
    batch.kept.note(batch.run, replace(attempt, ended=time.time(), end=word))
    return exit_code


def refuse_fruitless(batch: Batch, before: Progress, id: str | None) -> None:
    """Refuse to start again and again at the same round."""
    submitted = {str(job) for job in batch.kept.submitted().get("jobs", [])}
    attempts = batch.kept.attempts(batch.run)
    latest = [a for a in attempts if a.job == id or a.job.split("_")[0] in submitted]
    fruitless = latest[-FRUITLESS:]
    if len(fruitless) == FRUITLESS and all(attempt.rounds == before.rounds for attempt in fruitless):
        raise RunError(
            f"{FRUITLESS} starts in a row got no further than round {before.rounds:,}: see the log for why; "
            "if a round takes longer than the time limit, ask for more time"
        )


def allocated_cores() -> int:
    """The cores that Slurm has given to this job, from its list such as 8(x3),4."""
    total = 0
    for part in os.environ.get("SLURM_JOB_CPUS_PER_NODE", "").split(","):
        count, _, times = part.partition("(x")
        if count.isdigit():
            total += int(count) * int(times.rstrip(")") or 1)
    return total


class Watch:
    """A launcher at work, and the signals that are meant for its ranks."""

    def __init__(self, batch: Batch, id: str | None, tell: Callable[[str], None]) -> None:
        self._batch, self._id, self._tell = batch, id, tell
        self._command = batch.command()
        self._number: int = getattr(signal, f"SIG{batch.signal}")
        self._warned = self._ended = False  # which signals came since they were last looked at
        self._passed = False  # whether the ranks have been told
        self._look_at = 0.0  # when to look at the time again
        self._slurm_job: SlurmJob | None = None
        self.requeued = False  # whether Slurm has been asked already

    def __enter__(self) -> "Watch":
        signal.signal(self._number, self._warn)
        signal.signal(signal.SIGTERM, self._end)
        environment = os.environ | {
            launch.FAILURE: str(self._batch.kept.failure(self._batch.run).absolute()),
            SIGNAL: self._batch.signal,
        }
        launch.prepare(environment)
        self._child = subprocess.Popen(self._command, env=environment)  # noqa: S603
        return self

    def __exit__(self, *_: object) -> None:
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()

    def _warn(self, *_: object) -> None:
        self._warned = True

    def _end(self, *_: object) -> None:
        self._ended = True

    def wait(self) -> int:
        """The exit code of the launcher."""
        while True:
            try:
                return self._child.wait(LOOK)
            except subprocess.TimeoutExpired:
                self._attend()

    def _attend(self) -> None:
        """Tell the ranks to save and leave when it is time: when somebody says so, or little time is left."""
        warned, self._warned = self._warned, False
        ended, self._ended = self._ended, False
        if ended or (warned and not self._too_early()):
            self._pass_on()
        elif not self._passed and time.monotonic() >= self._look_at and self._time_is_up():
            self._tell("the time of this Slurm job is nearly up")
            self._pass_on()

    def _pass_on(self) -> None:
        if not self._passed:
            self._tell(f"asking the run to save and leave, by {self._batch.signal}")
        self._passed = True
        self._child.send_signal(self._number)
        job = self.ask()
        if job is not None and job.timed_out and not self.requeued and wants_more(self._batch, job):
            self.requeued = ask_for_more(job, self._tell)  # at once: Slurm may kill us soon

    def _too_early(self) -> bool:
        """Whether a warning is Slurm's of the time limit, which may come a minute before it is due."""
        job = self.ask()
        if job is None or job.left is None or job.preempted or job.state != "RUNNING":
            return False
        self._look_at = time.monotonic()
        return (
            self._lead(job) < job.left < EARLIEST and not self._batch.kept.stopped(self._batch.run).exists()
        )

    def _time_is_up(self) -> bool:
        """Whether the ranks must save now; looks at Slurm's clock rarely, and again before it says so."""
        job = self.ask()
        left = job.left if job else None
        spare = 1200.0 if job is None or left is None else left - self._lead(job)
        self._look_at = time.monotonic() + max(1.0, min(600.0, spare / 2))
        return spare <= 0

    def _lead(self, job: SlurmJob) -> float:
        """The seconds that finishing a round, saving and leaving take: by what was measured, if anything."""
        if self._batch.lead is not None:
            return float(self._batch.lead)
        now, limit = progress(self._batch.run), job.time_limit or 4.0 * LEAD
        if not now.rate:
            return min(LEAD, limit / 4)
        return min(MARGIN + 3 * (1 / now.rate + now.saving), limit / 2)

    def ask(self) -> SlurmJob | None:
        """The Slurm job of this batch, as Slurm sees it now, or has seen it last."""
        if self._id is not None:
            with suppress(RunError, UsageError):
                found = commands.jobs(self._id)
                self._slurm_job = found[0] if found else None
        return self._slurm_job


def own_restarts() -> int:
    """How often Slurm had started this job again when it began."""
    return int(os.environ.get("SLURM_RESTART_COUNT", 0))


def wants_more(batch: Batch, job: SlurmJob) -> bool:
    """Whether this Slurm job should be started again, as far as nobody has said otherwise."""
    ended_by_user = job.state in ("COMPLETING", "CANCELLED") and not job.timed_out
    return (
        batch.requeue
        and job.restarts == own_restarts()
        and not ended_by_user
        and not batch.kept.stopped(batch.run).exists()
    )


def ask_for_more(job: SlurmJob, tell: Callable[[str], None]) -> bool:
    """Let Slurm start this job again."""
    complaint = commands.requeue(job.id)
    if complaint:
        tell(f"Slurm does not start it again: {complaint}; go on by hand with sbatch {job.command}")
    return not complaint


def concluded(batch: Batch, watch: Watch, code: int, tell: Callable[[str], None]) -> tuple[str, int]:
    """What became of a start: a word for the record, and the exit code of the batch script."""
    after = progress(batch.run)
    if after.finished:
        cancel_the_rest(batch)
        tell(f"finished after {after.rounds:,} rounds: {batch.run}")
        return "finished", 0
    failure = batch.kept.failure(batch.run)
    if failure.exists():
        return "failed", 2 if code == 2 else 1
    tell(f"saved at round {after.rounds:,}, not finished (the launcher ended with {code}): {batch.run}")
    if batch.kept.stopped(batch.run).exists():
        return "stopped", TO_BE_CONTINUED
    job = watch.ask()
    if job is None or watch.requeued or not wants_more(batch, job):
        return "left", TO_BE_CONTINUED
    return ("requeued" if ask_for_more(job, tell) else "left"), TO_BE_CONTINUED


def cancel_the_rest(batch: Batch) -> None:
    """Take back the later Slurm jobs of a chain, which have nothing left to do."""
    own, chain = os.environ.get("SLURM_JOB_ID"), [str(job) for job in batch.kept.submitted().get("jobs", [])]
    if not batch.requeue and own in chain:
        commands.cancel(*chain[chain.index(own) + 1 :])
