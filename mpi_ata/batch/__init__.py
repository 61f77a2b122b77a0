"""Batch jobs: submitting runs to a scheduler, what runs inside a batch job, and the status of them all."""

from mpi_ata.batch.inside import BatchJob, run_batch
from mpi_ata.batch.interface import Resources, SchedulerUnreachableError, scheduler
from mpi_ata.batch.status import status, stop
from mpi_ata.batch.submit import Submission, Sweep, submit

__all__ = [
    "BatchJob",
    "Resources",
    "SchedulerUnreachableError",
    "Submission",
    "Sweep",
    "run_batch",
    "scheduler",
    "status",
    "stop",
    "submit",
]
