"""How processes start and stop: launchers, the environment they set, signals."""

from mpi_ata.launch.environment import (
    THREADS,
    allocated_cores,
    assign_gpus,
    host_name,
    local_rank,
    local_size,
    one_thread_per_rank,
    rank,
    slurm_job,
    slurm_tasks,
    step_tasks,
    under_launcher,
    without_rank,
    world_size,
)
from mpi_ata.launch.job_start import take_job_age
from mpi_ata.launch.mpirun import (
    FAILURE,
    exec_launcher,
    find_mpirun,
    note_failure,
    rank_command,
    set_mpi_defaults,
    start_ranks,
    start_script,
)
from mpi_ata.launch.rank_process import hold_signals_of_starter
from mpi_ata.launch.script_start import script_command, script_folder
from mpi_ata.launch.subprocesses import CommandResult, run_command

__all__ = [
    "FAILURE",
    "THREADS",
    "CommandResult",
    "allocated_cores",
    "assign_gpus",
    "exec_launcher",
    "find_mpirun",
    "hold_signals_of_starter",
    "host_name",
    "local_rank",
    "local_size",
    "note_failure",
    "one_thread_per_rank",
    "rank",
    "rank_command",
    "run_command",
    "script_command",
    "script_folder",
    "set_mpi_defaults",
    "slurm_job",
    "slurm_tasks",
    "start_ranks",
    "start_script",
    "step_tasks",
    "take_job_age",
    "under_launcher",
    "without_rank",
    "world_size",
]
