"""Job files: what a user may write, and the parts of a run that are built from it."""

from mpi_ata.job.build import Parts, build_parts
from mpi_ata.job.resume import resume_job
from mpi_ata.job.schema import Job, RunDescription, Stop, load_job

__all__ = ["Job", "Parts", "RunDescription", "Stop", "build_parts", "load_job", "resume_job"]
