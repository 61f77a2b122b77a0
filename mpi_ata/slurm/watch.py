"""Watches over the launcher in a batch script: passes signals on to the ranks, and tells them in time."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress

from mpi_ata import launch
from mpi_ata.errors import RunError, UsageError
from mpi_ata.launch.signals import SIGNAL_VARIABLE
from mpi_ata.runfile.progress import Progress, read_progress
from mpi_ata.slurm import commands
from mpi_ata.slurm.batch import Batch, request_requeue, should_requeue
from mpi_ata.slurm.commands import SlurmJob
from mpi_ata.slurm.script import LEAD

LOOK = 0.2  # seconds between looks at the launcher
EARLIEST = 2.0 * LEAD + 30  # seconds before the end: the earliest that Slurm warns of it
MARGIN = 10.0  # seconds that ending all ranks and asking Slurm may take, beside round and save


class Watch:
    """A launcher at work, and the signals that are meant for its ranks."""

    def __init__(self, batch: Batch, id: str | None, tell: Callable[[str], None]) -> None:
        self._batch, self._id, self._tell = batch, id, tell
        self._number = signal.Signals[f"SIG{batch.signal}"]
        self._warned = self._ended = False  # which signals came since they were last looked at
        self._passed = False  # whether the ranks have been told
        self._look_at = 0.0  # when to look at the time again
        self._slurm_job: SlurmJob | None = None
        self.requeued = False  # whether Slurm has been asked already
        signal.signal(self._number, self._warn)  # first of all: it may come at any time
        signal.signal(signal.SIGTERM, self._end)

    def __enter__(self) -> "Watch":
        environment = os.environ | {
            launch.FAILURE: str(self._batch.kept.failure(self._batch.run).absolute()),
            SIGNAL_VARIABLE: self._batch.signal,
        }
        launch.set_mpi_defaults(environment)
        self._child = subprocess.Popen(self._batch.command(), env=environment)  # noqa: S603
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
        if job is not None and job.timed_out and not self.requeued and should_requeue(self._batch, job):
            self.requeued = request_requeue(job, self._tell)  # at once: Slurm may kill us soon

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
        """How many seconds before the end the ranks must be told."""
        if self._batch.lead is not None:
            return float(self._batch.lead)
        return needed(read_progress(self._batch.run), job.time_limit)

    def ask(self) -> SlurmJob | None:
        """The Slurm job of this batch, as Slurm sees it now, or has seen it last."""
        if self._id is not None:
            with suppress(RunError, UsageError):
                found = commands.jobs(self._id)
                self._slurm_job = found[0] if found else None
        return self._slurm_job


def needed(now: Progress, limit: float | None) -> float:
    """The seconds that finishing a round, saving and leaving take: by what was measured, if anything."""
    limit = limit or 4.0 * LEAD
    if not now.rate:
        return min(LEAD, limit / 4)
    return min(MARGIN + 3 * (1 / now.rate + now.saving), limit / 2)
