"""The start of a job is that of the process which started its ranks, or of its Slurm job."""

import os
import subprocess
import sys
import time

import pytest

AGES = """
import os, sys, time
time.sleep(float(sys.argv[1]))
from mpi_ata.launch.environment import STARTED, take_job_age
print(take_job_age(), take_job_age(), os.environ.get(STARTED))
"""
NAMES = ("MPI_ATA_STARTED", "SLURM_JOB_START_TIME", "SLURM_STEP_ID")


def ages(pause: float = 0.0, **variables: str) -> tuple[float, float]:
    """The age of the job when a process asks, after a pause, for the first and for the second time."""
    inherited = {name: value for name, value in os.environ.items() if name not in NAMES}
    command = [sys.executable, "-c", AGES, str(pause)]
    done = subprocess.run(command, env=inherited | variables, capture_output=True, text=True, check=True)
    first, second, left = done.stdout.split()
    assert left == "None", "what a task starts is another job"
    return float(first), float(second)


def test_a_job_begins_with_its_process_and_only_the_first_run_counts_from_there() -> None:
    began = time.monotonic()
    first, second = ages(pause=0.5)
    assert 0.5 <= first <= time.monotonic() - began + 0.02  # the kernel counts in hundredths of a second
    assert second == 0.0


def test_a_job_begins_with_the_process_that_started_its_ranks() -> None:
    assert 100 <= ages(MPI_ATA_STARTED=str(time.time() - 100))[0] < 200


@pytest.mark.parametrize(("step", "oldest"), [("0", 300.0), ("1", 0.0), ("", 0.0)])
def test_the_first_step_of_a_slurm_job_begins_with_the_slurm_job(step: str, oldest: float) -> None:
    start = str(int(time.time()) - 300)
    assert oldest <= ages(SLURM_JOB_START_TIME=start, SLURM_STEP_ID=step)[0] < oldest + 100


@pytest.mark.parametrize("text", ["", "nonsense", "nan", "-5", "1e300"])
def test_a_start_that_cannot_be_is_ignored(text: str) -> None:
    assert ages(MPI_ATA_STARTED=text)[0] < 100
