"""Batch jobs: submitting runs to a scheduler, what runs inside a batch job, and the status of them all."""

from mpi_ata.batch.inside import BatchJob, BatchOptions, run_batch
from mpi_ata.batch.interface import Resources, SchedulerUnreachableError, scheduler
from mpi_ata.batch.status import status, status_from_files, stop
from mpi_ata.batch.submission import Submission, Sweep
from mpi_ata.batch.submit import submit

__all__ = [
    "BatchJob",
    "BatchOptions",
    "Resources",
    "SchedulerUnreachableError",
    "Submission",
    "Sweep",
    "run_batch",
    "scheduler",
    "status",
    "status_from_files",
    "stop",
    "submit",
]
