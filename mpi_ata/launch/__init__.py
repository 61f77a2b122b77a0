"""How processes start and end: launchers, what they say in the environment, signals."""

from mpi_ata.launch.command import CommandResult, run_command
from mpi_ata.launch.environment import (
    THREADS,
    allocated_cores,
    local_rank,
    one_thread_per_rank,
    own_devices,
    rank,
    slurm_tasks,
    step_tasks,
    under_launcher,
    world_size,
)
from mpi_ata.launch.mpirun import (
    FAILURE,
    TERMINAL,
    exec_launcher,
    find_mpirun,
    note_failure,
    prepare,
    rank_command,
    start_ranks,
)

__all__ = [
    "FAILURE",
    "TERMINAL",
    "THREADS",
    "CommandResult",
    "allocated_cores",
    "exec_launcher",
    "find_mpirun",
    "local_rank",
    "note_failure",
    "one_thread_per_rank",
    "own_devices",
    "prepare",
    "rank",
    "rank_command",
    "run_command",
    "slurm_tasks",
    "start_ranks",
    "step_tasks",
    "under_launcher",
    "world_size",
]
