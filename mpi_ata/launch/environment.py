"""What the launcher and Slurm say about this process: its rank, its world, its cores and GPUs."""

import os
import re
import socket
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager

from mpi_ata.layout import MANAGER

WORLD_SIZE = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_SIZE")
RANK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
LOCAL_SIZE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
OF_A_RANK = ("OMPI_", "PMI", "PRTE_", "MPI_LOCAL", "MV2_COMM", "SLURM_STEP", "SLURM_PROCID", "SLURM_LOCALID")
DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def under_launcher() -> bool:
    """Return whether mpirun or srun started this process as a rank."""
    return any(name in os.environ for name in WORLD_SIZE) or step_tasks() > 1


def world_size() -> int:
    """Return how many ranks the launcher says it started; 1 without a launcher."""
    return next((int(os.environ[name]) for name in WORLD_SIZE if name in os.environ), step_tasks())


def step_tasks() -> int:
    """Return how many tasks the Slurm step of this process has; 1 outside a step."""
    return int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) if "SLURM_STEP_ID" in os.environ else 1


def slurm_tasks() -> int | None:
    """Return how many tasks Slurm gave to this job or step; None outside Slurm."""
    return int(os.environ["SLURM_NTASKS"]) if os.environ.get("SLURM_NTASKS") else None


def slurm_job(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the id of the Slurm job that this process belongs to."""
    array, member = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{member}" if array and member else environment.get("SLURM_JOB_ID")


def allocated_cores() -> int:
    """Return how many cores Slurm gave to this job, from a list such as 8(x3),4; 0 outside Slurm."""
    total = 0
    for part in os.environ.get("SLURM_JOB_CPUS_PER_NODE", "").split(","):
        count, _, times = part.partition("(x")
        if count.isdigit():
            total += int(count) * int(times.rstrip(")") or 1)
    return total


@contextmanager
def without_rank(environment: MutableMapping[str, str]) -> Iterator[None]:
    """Hide what makes a process a rank: one that is started meanwhile must not join the world of this one."""
    hidden = {name: value for name, value in environment.items() if name.startswith(OF_A_RANK)}
    for name in hidden:
        del environment[name]
    try:
        yield
    finally:
        environment.update(hidden)


def rank() -> int:
    """Return the rank of this process according to its launcher."""
    return next((int(os.environ[name]) for name in RANK if name in os.environ), MANAGER)


def local_rank() -> int:
    """Return the rank of this process on its node according to its launcher."""
    return next((int(os.environ[name]) for name in LOCAL_RANK if name in os.environ), 0)


def local_size() -> int:
    """Return how many ranks there are on this node according to the launcher; 0 if unknown."""
    return next((int(os.environ[name]) for name in LOCAL_SIZE if name in os.environ), 0)


def one_thread_per_rank(environment: MutableMapping[str, str]) -> None:
    """Keep numerical libraries from starting a thread per core in each rank, unless the user asked for it."""
    for name in THREADS:
        environment.setdefault(name, "1")


def assign_gpus(environment: MutableMapping[str, str]) -> None:
    """Restrict a rank of a Slurm job to its own share of its node's GPUs; the manager uses none.

    Scripts of torch.distributed, which need MASTER_ADDR, choose the GPU of a rank themselves, that of rank 0
    included.
    """
    if "SLURM_JOB_ID" not in environment or "MASTER_ADDR" in environment:
        return
    share = int(re.findall(r"\d+", f"1 {environment.get('SLURM_GPUS_PER_TASK', '')}")[-1])
    for name in DEVICES:
        visible = [device for device in environment.get(name, "").split(",") if device]
        if visible and rank() == MANAGER:
            environment[name] = ""
        elif len(visible) > share:  # Slurm has not divided them among the ranks
            first = local_rank() * share
            environment[name] = ",".join(visible[j % len(visible)] for j in range(first, first + share))


def host_name() -> str:
    """Return the name of this node; on Slurm, the name by which Slurm knows it."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()
