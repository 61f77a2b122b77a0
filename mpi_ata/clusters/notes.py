"""What the user should know about the ranks of a cluster before the first round."""

import logging
import os

from mpi_ata.clusters.interface import DRAWS_GLOBALLY
from mpi_ata.clusters.pool import WorkerPool
from mpi_ata.launch import host_name, slurm_tasks
from mpi_ata.layout import ranks_for

log = logging.getLogger("mpi_ata")


def log_notes(pool: WorkerPool, sleeping: bool) -> None:
    """Log what the user should know about these ranks; `sleeping` if their tasks mostly sleep."""
    _log_connections(pool)
    if pool.draws_globally:
        log.warning(DRAWS_GLOBALLY)
    if sleeping:
        log.info("tasks sleep as long as [times] says; without it, they run at their real speed")
    here = sum(rank.host == host_name() for rank in pool.connections.ranks)
    if here > (cores := os.cpu_count() or here) and not sleeping:
        log.warning(f"{here} ranks share {cores} cores here: task times include waiting for a core")
    shared = pool.connections.shared
    if shared is not None and shared.room() < 2 * (pool.n + 2) * pool.template.nbytes:
        log.warning("shared memory is too small for x and all results: what does not fit is sent by MPI")


def _log_connections(pool: WorkerPool) -> None:
    if (given := slurm_tasks()) not in (None, ranks := ranks_for(pool.n)):
        log.warning(f"Slurm has given {given} tasks to this job, but {ranks} ranks were started")
    if pool.unreachable:
        unreachable = sorted(pool.unreachable)
        log.warning(f"the doorbell of workers {unreachable} cannot be rung: they poll every 10 ms")
    if unwatched := pool.connections.unwatched:
        log.warning(f"workers {unwatched} cannot reach the manager over TCP: deaths are noticed late")
