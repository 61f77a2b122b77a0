"""Watches the launcher in a batch script: forwards signals to the ranks, and makes them save in time."""

import os
import signal
import subprocess
import time
from contextlib import suppress

from mpi_ata import launch
from mpi_ata.errors import RunError, UsageError
from mpi_ata.launch.held_signals import SIGNAL_VARIABLE
from mpi_ata.launch.job_start import STARTED, job_start, slurm_job_start
from mpi_ata.launch.verdict import VARIABLE as VERDICT_VARIABLE
from mpi_ata.launch.verdict import read_verdict
from mpi_ata.runfile.progress import read_progress
from mpi_ata.slurm import commands
from mpi_ata.slurm.batch import Batch, Echo, request_requeue, should_requeue
from mpi_ata.slurm.lead import LEAD, measured_lead
from mpi_ata.slurm.slurm_job import SlurmJob

POLL = 0.2  # seconds between two checks of the launcher and the signals
EARLIEST = 2.0 * LEAD + 30  # seconds before the end: at the default lead, Slurm warns no earlier


class Watch:
    """A running launcher, and the signals that are meant for its ranks."""

    def __init__(self, batch: Batch, id: str | None, echo: Echo) -> None:
        self._batch, self._id, self._echo = batch, id, echo
        self._signal = signal.Signals[f"SIG{batch.signal}"]
        self._got_warning = self._got_term = False  # signals since the last poll
        self._forwarded = False  # whether the ranks have been asked to save
        self._next_check = 0.0  # when to compare the time left with the lead
        self._latest: SlurmJob | None = None
        self.requeued = False  # whether Slurm has requeued this job already
        signal.signal(self._signal, self._on_warning)  # before anything else: it may come at any time
        signal.signal(signal.SIGTERM, self._on_term)

    def __enter__(self) -> "Watch":
        verdict = self._batch.submission_dir.verdict_file(self._batch.run)
        verdict.unlink(missing_ok=True)
        environment = os.environ | {
            launch.FAILURE: str(self._batch.failure_file.absolute()),
            SIGNAL_VARIABLE: self._batch.signal,
            VERDICT_VARIABLE: str(verdict.absolute()),
            STARTED: str(min(job_start(), slurm_job_start())),
        }
        launch.set_mpi_defaults(environment)
        self._child = subprocess.Popen(self._batch.command(), env=environment)  # noqa: S603
        return self

    def __exit__(self, *_: object) -> None:
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()

    def host_that_ended_ranks(self) -> str:
        """Return the host of the worker whose death made the MPI end all ranks; empty if that is not why."""
        verdict = read_verdict(self._batch.submission_dir.verdict_file(self._batch.run))
        # The first to die is the cause; a signal, or Slurm after it, may end ranks in any order.
        died = verdict.losses and not self._forwarded
        return verdict.losses[0].host if died else ""

    def _on_warning(self, *_: object) -> None:
        self._got_warning = True

    def _on_term(self, *_: object) -> None:
        self._got_term = True

    def wait(self) -> int:
        """Wait for the launcher and return its exit code."""
        while True:
            try:
                return self._child.wait(POLL)
            except subprocess.TimeoutExpired:
                self._poll()

    def _poll(self) -> None:
        """Ask the ranks to save and leave if a signal says so, or if little time is left."""
        warning, self._got_warning = self._got_warning, False
        term, self._got_term = self._got_term, False
        if term or (warning and not self._warned_too_early()):
            self._forward()
        elif not self._forwarded and time.monotonic() >= self._next_check and self._time_is_up():
            self._echo("the time of this Slurm job is nearly up")
            self._forward()

    def _forward(self) -> None:
        if not self._forwarded:
            self._echo(f"asking the run to save and leave, by {self._batch.signal}")
        self._forwarded = True
        self._child.send_signal(self._signal)
        job = self.slurm_job()
        if job is not None and job.timed_out and not self.requeued and should_requeue(self._batch, job):
            self.requeued = request_requeue(job, self._echo)  # now: Slurm may kill this process soon

    def _warned_too_early(self) -> bool:
        """Return whether Slurm warned of the time limit earlier than needed, which it may by a minute."""
        job = self.slurm_job()
        if job is None or job.time_left is None or job.preempted or job.state != "RUNNING":
            return False
        self._next_check = time.monotonic()
        return self._lead(job) < job.time_left < EARLIEST and not self._batch.stopped

    def _time_is_up(self) -> bool:
        """Return whether the ranks must save now, and schedule the next check at half the time to spare."""
        job = self.slurm_job()
        left = job.time_left if job else None
        spare = 1200.0 if job is None or left is None else left - self._lead(job)
        self._next_check = time.monotonic() + max(1.0, min(600.0, spare / 2))
        return spare <= 0

    def _lead(self, job: SlurmJob) -> float:
        """Return how many seconds before the end the ranks must be asked to save."""
        if self._batch.lead is not None:
            return float(self._batch.lead)
        return measured_lead(read_progress(self._batch.run), job.time_limit)

    def slurm_job(self) -> SlurmJob | None:
        """Return the Slurm job of this batch as Slurm describes it now, or did when it last answered."""
        if self._id is not None:
            with suppress(RunError, UsageError):
                found = commands.jobs(self._id)
                self._latest = found[0] if found else None
        return self._latest
