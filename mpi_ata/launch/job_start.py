"""When the job began that this process belongs to: imports and the start of ranks cost time, too."""

import math
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

STARTED = "MPI_ATA_STARTED"  # when the process began that has started the ranks, in seconds since 1970
IMPORTED = time.time()
FIRST_STEP = "0"  # later steps of a Slurm job have other work before them

# Taken out: what a task starts by itself is another job.
_starter = os.environ.pop(STARTED, "")
_taken: list[bool] = []


def process_start() -> float:
    """Return when this process began, in seconds since 1970; where the system does not say, its imports."""
    if sys.platform != "linux":
        return IMPORTED
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return IMPORTED
    return min(time.time() - max(age, 0.0), IMPORTED)


def job_start() -> float:
    """Return when the job began: the Slurm job with its first step, else the process that started ranks."""
    return min(
        process_start(),
        _time(_starter),
        slurm_job_start() if os.environ.get("SLURM_STEP_ID") == FIRST_STEP else math.inf,
    )


def slurm_job_start() -> float:
    """Return when this Slurm job began, in seconds since 1970; infinity where that is not known."""
    return _time(os.environ.get("SLURM_JOB_START_TIME", ""))


def take_job_age() -> float:
    """Return the seconds since the job began, the first time; later runs of this process begin with 0."""
    if _taken:
        return 0.0
    _taken.append(True)
    return max(time.time() - job_start(), 0.0)


def _time(text: str) -> float:
    """Return a time of the past by its text; infinity if it is none."""
    with suppress(ValueError):
        if 0 < float(text) <= time.time():
            return float(text)
    return math.inf
