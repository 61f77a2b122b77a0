"""What the environment says about this process: launcher, rank, cores, Slurm job, and when it all began."""

import logging
import math
import os
import re
import socket
import sys
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from mpi_ata.layout import MANAGER

WORLD_SIZE = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_SIZE", "FLUX_JOB_SIZE")
RANK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "FLUX_TASK_RANK", "SLURM_PROCID")
LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
LOCAL_SIZE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
OF_A_RANK = ("OMPI_", "PMI", "PRTE_", "MPI_LOCAL", "MV2_COMM", "SLURM_STEP", "SLURM_PROCID", "SLURM_LOCALID")
DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
FAULT_TOLERANT = "OMPI_MCA_mpi_ft_enable"  # 1 on ranks that Open MPI lets outlive others
OWNER = "MPI_ATA_RANK"  # the process that is the rank: its children inherit the launcher's variables
CORES = "MPI_ATA_CORES"  # that a batch job has, as far as `mpi-ata batch` knows
RELEASED = "MPI_ATA_RELEASED"  # hosts that were given back before the ranks were started again
STARTED = "MPI_ATA_STARTED"  # when the process began that has started the ranks, in seconds since 1970
FIRST_STEP = "0"  # later steps of a Slurm job have other work before them
TERMINAL = "MPI_ATA_TERMINAL"  # which of rank 0's streams are forwarded to a terminal; it may draw on stderr
COMMANDS = "mpi_ata.cli"  # the module of the command line, whose ranks all do the same

IMPORTED = time.time()
log = logging.getLogger("mpi_ata")

# Taken out: what a task starts by itself is another job.
_starter = os.environ.pop(STARTED, "")
_taken: list[bool] = []


def open_closed_streams() -> None:
    """Open /dev/null for a closed stdin, stdout or stderr: another file would take its number."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115


_chosen: list[tuple[int, int]] = []  # rank and size in the communicator of the script's own, if it has one


def choose_world(rank: int, size: int) -> None:
    """Let this process be one rank of so many that take part, whatever the launcher says."""
    _chosen[:] = [(rank, size)]


def under_launcher() -> bool:
    """Return whether mpirun or srun started this process as a rank."""
    return bool(_chosen) or any(name in os.environ for name in WORLD_SIZE) or step_tasks() > 1


def world_size() -> int:
    """Return how many ranks take part: by the launcher, or of the chosen ones; 1 without a launcher."""
    if _chosen:
        return _chosen[0][1]
    return next((int(os.environ[name]) for name in WORLD_SIZE if name in os.environ), step_tasks())


def step_tasks() -> int:
    """Return how many tasks the Slurm step of this process has; 1 outside a step."""
    return int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) if "SLURM_STEP_ID" in os.environ else 1


def slurm_values(name: str) -> list[str]:
    """Return a variable of this Slurm job, or of each component of a heterogeneous one."""
    components = range(int(os.environ.get("SLURM_HET_SIZE", 0)))
    names = [f"{name}_HET_GROUP_{number}" for number in components] or [name]
    return [os.environ[each] for each in names if os.environ.get(each)]


def slurm_tasks() -> int | None:
    """Return how many tasks Slurm gave to this job or step; None outside Slurm."""
    return sum(map(int, slurm_values("SLURM_NTASKS"))) or None


def slurm_job() -> str | None:
    """Return the id of the Slurm job that this process belongs to."""
    array, member = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{member}" if array and member else os.environ.get("SLURM_JOB_ID")


def allocated_cores() -> int:
    """Return how many cores this batch job has; Slurm lists them as 8(x3),4; 0 outside batch jobs."""
    if (cores := os.environ.get(CORES, "")).isdecimal() and int(cores):
        return int(cores)
    return sum(expand_counts(",".join(slurm_values("SLURM_JOB_CPUS_PER_NODE"))))


def expand_counts(text: str) -> list[int]:
    """Return the numbers of each node in a list such as 8(x3),4."""
    counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(count) for count, times in counts for _ in range(int(times or 1))]


def is_script_rank() -> bool:
    """Return whether this very process is a rank of mpirun's; not for children of one, nor tasks of srun."""
    own = str(os.getpid())
    return world_size() > 1 and step_tasks() == 1 and os.environ.setdefault(OWNER, own) == own


@cache
def note_simulation() -> None:
    """Warn, once, where every rank of a script simulates the same workers."""
    if COMMANDS not in sys.modules and under_launcher() and world_size() > 1 and rank() == MANAGER:
        log.warning(
            "each of the %s ranks runs its own copy of the simulation; leave out mpirun, or use the ranks as "
            "workers with mpi_ata.cluster(problem)",
            world_size(),
        )


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
    """Return the rank of this process according to its launcher, or among the chosen ones."""
    if _chosen:
        return _chosen[0][0]
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


def process_start() -> float:
    """Return when this process began, in seconds since 1970; where the system does not say, its imports."""
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
