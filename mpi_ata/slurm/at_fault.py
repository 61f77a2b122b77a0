"""A run that lost workers is requeued without the nodes that are at fault."""

import time
from collections.abc import Sequence
from pathlib import Path

from mpi_ata.errors import RunError, UsageError
from mpi_ata.runfile.hosts import hosts_at_fault
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.record import Event
from mpi_ata.runfile.store import RunFile
from mpi_ata.slurm import commands
from mpi_ata.slurm.batch import Echo
from mpi_ata.slurm.exclude import node_name, nodes_left
from mpi_ata.slurm.slurm_job import SlurmJob

TRIES, PAUSE = 5, 0.5  # Slurm ends the processes of a job that it requeues, perhaps also an scontrol of ours


def recorded_events(run: Path) -> Sequence[Event]:
    """Return the events of a run; none if its file cannot be read."""
    try:
        return load_record(RunFile(run))[0].events
    except UsageError:
        return ()


def exclude_at_fault(run: Path, host: str, job: SlurmJob, echo: Echo) -> None:
    """Exclude the nodes at fault from a job that has just been requeued: Slurm rejects that earlier.

    `host` is that of the worker whose death ended all ranks, if that is known.
    """
    hosts = list(dict.fromkeys([*hosts_at_fault(recorded_events(run)), *filter(None, [host])]))
    try:
        if hosts and (found := nodes_at_fault(hosts, job, echo)):
            update(job, found, echo)
    except (RunError, UsageError) as error:
        echo(f"requeued on any node, although {', '.join(hosts)} lost workers: {error}")


def nodes_at_fault(hosts: Sequence[str], job: SlurmJob, echo: Echo) -> list[str]:
    """Return the nodes that a job must avoid from now on; none if too few others are left."""
    known, before = commands.nodes_by_partition(), commands.expand_nodes(job.excluded)
    names = [name for host in hosts if (name := node_name(host, known)) and name not in before]
    left = nodes_left(known, job.partition.split(","), [*before, *names])
    if names and len(left) < job.node_count:
        echo(f"{', '.join(names)} lost workers, but the job needs all nodes of the partition {job.partition}")
        return []
    return names


def update(job: SlurmJob, nodes: Sequence[str], echo: Echo) -> None:
    """Add nodes to those that a requeued job must avoid."""
    together = [*filter(None, [job.excluded]), *nodes]  # the new list replaces the old one
    for _ in range(TRIES):
        error = commands.exclude_nodes(job.id, together)
        if not error:
            echo(f"requeued without {', '.join(nodes)}, where workers were lost")
            return
        time.sleep(PAUSE)
    raise RunError(error)
