"""What a process learns from its launcher and from Slurm: rank, GPUs, cores, and when its job began."""

import os
import subprocess
import sys
import time

import pytest

from mpi_ata import launch
from mpi_ata.launch.environment import LOCAL_RANK, RANK


@pytest.mark.parametrize("name", LOCAL_RANK)
def test_the_local_rank_is_the_one_that_the_launcher_set(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in LOCAL_RANK:
        monkeypatch.delenv(other, raising=False)
    assert launch.local_rank() == 0
    monkeypatch.setenv(name, "3")
    assert launch.local_rank() == 3


@pytest.mark.parametrize(
    ("rank", "local", "visible", "share", "expected"),
    [
        (0, 0, "0,1,2,3", "", ""),  # the manager computes no task
        (1, 1, "0,1,2,3", "", "1"),
        (4, 4, "0,1,2,3", "", "0"),  # the last of four workers besides the manager
        (5, 0, "0,1,2,3", "", "0"),
        (6, 1, "0,1,2,3", "a100:2", "2,3"),
        (6, 1, "3", "1", "3"),  # already divided by Slurm
        (6, 1, "2,3", "gpu:a100:2", "2,3"),
        (6, 1, "", "", ""),
    ],
)
def test_each_worker_of_a_slurm_job_has_its_own_gpus(
    rank: int, local: int, visible: str, share: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*RANK, *LOCAL_RANK):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_PROCID", str(rank))
    monkeypatch.setenv("SLURM_LOCALID", str(local))
    environment = {"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": visible, "SLURM_GPUS_PER_TASK": share}
    launch.assign_gpus(environment)
    assert environment["CUDA_VISIBLE_DEVICES"] == expected


@pytest.mark.parametrize("more", [{"SLURM_JOB_ID": "7", "MASTER_ADDR": "node1"}, {}])
def test_ranks_of_torch_distributed_and_those_outside_slurm_keep_all_gpus_rank_0_too(
    more: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    environment = {"CUDA_VISIBLE_DEVICES": "0,1", **more}
    launch.assign_gpus(environment)
    assert environment["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_cores_are_counted_over_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "8(x3),4,16(x2)")
    assert launch.allocated_cores() == 60
    monkeypatch.delenv("SLURM_JOB_CPUS_PER_NODE")
    assert launch.allocated_cores() == 0


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
