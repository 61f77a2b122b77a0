"""What the launcher and Slurm say about this process: its rank, its world, its cores and devices."""

import os
import re
from collections.abc import MutableMapping

WORLD_SIZE = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_SIZE")
RANK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def under_launcher() -> bool:
    """Whether this process is a rank that mpirun or srun has started."""
    return any(name in os.environ for name in WORLD_SIZE) or step_tasks() > 1


def world_size() -> int:
    """How many ranks the launcher has started, as it says; 1 without one."""
    return next((int(os.environ[name]) for name in WORLD_SIZE if name in os.environ), step_tasks())


def step_tasks() -> int:
    """How many tasks the step of Slurm's that this process belongs to has; 1 outside of one."""
    return int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) if "SLURM_STEP_ID" in os.environ else 1


def slurm_tasks() -> int | None:
    """How many tasks Slurm has given to this job, or to this step of it; None outside of Slurm."""
    return int(os.environ["SLURM_NTASKS"]) if os.environ.get("SLURM_NTASKS") else None


def allocated_cores() -> int:
    """The cores that Slurm has given to this job, by its list such as 8(x3),4; 0 outside of Slurm."""
    total = 0
    for part in os.environ.get("SLURM_JOB_CPUS_PER_NODE", "").split(","):
        count, _, times = part.partition("(x")
        if count.isdigit():
            total += int(count) * int(times.rstrip(")") or 1)
    return total


def rank() -> int:
    """The rank of this process, as its launcher says."""
    return next((int(os.environ[name]) for name in RANK if name in os.environ), 0)


def local_rank() -> int:
    """The number of this process among those on its node, as its launcher says."""
    return next((int(os.environ[name]) for name in LOCAL_RANK if name in os.environ), 0)


def one_thread_per_rank(environment: MutableMapping[str, str]) -> None:
    """Keep numerical libraries from starting a thread a core in every rank, unless the user says so."""
    for name in THREADS:
        environment.setdefault(name, "1")


def own_devices(environment: MutableMapping[str, str]) -> None:
    """Leave to a rank of a Slurm job its own GPUs of those that its node was given; the manager uses none."""
    if "SLURM_JOB_ID" not in environment:
        return
    share = int(re.findall(r"\d+", f"1 {environment.get('SLURM_GPUS_PER_TASK', '')}")[-1])
    for name in DEVICES:
        given = [device for device in environment.get(name, "").split(",") if device]
        if given and rank() == 0:
            environment[name] = ""
        elif len(given) > share:  # Slurm has not divided them among the ranks
            first = local_rank() * share
            environment[name] = ",".join(given[j % len(given)] for j in range(first, first + share))
