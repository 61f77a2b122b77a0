"""Nodes that a batch job must avoid: hosts that were slow, flaky or lost in earlier runs, or in its own."""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from mpi_ata.batch.interface import Placement, QueuedJob, Resources, scheduler
from mpi_ata.errors import RunError, UsageError
from mpi_ata.runfile.hosts import hosts_at_fault, report_hosts
from mpi_ata.runfile.load import EarlierRuns
from mpi_ata.runfile.schema import Event, Record

NODE_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}"  # nothing else may get into a batch script
UPDATE_TRIES, PAUSE_SECONDS = 5, 0.5  # Slurm ends processes of a job that it requeues, perhaps ours too

Nodes = Mapping[str, Sequence[str]]  # of each partition
Echo = Callable[[str], None]  # prints a line to the log of the batch job


class NodesLeft(NamedTuple):
    """The nodes of some partitions, and which of them may not be used."""

    nodes: list[str]
    excluded: list[str]

    @classmethod
    def of(cls, placement: Placement, known: Nodes, more: Iterable[str]) -> "NodesLeft":
        """Return what is left to a batch job if it must avoid more nodes than before."""
        nodes = dict.fromkeys(node for name in placement.partitions for node in known.get(name, ()))
        avoided = {*scheduler().expand_nodes(placement.excluded), *more}
        return cls(list(nodes), [node for node in nodes if node in avoided])

    @property
    def usable(self) -> int:
        """Return how many may be used."""
        return len(self.nodes) - len(self.excluded)


def without_bad_hosts(resources: Resources, paths: Sequence[Path]) -> tuple[Resources, list[str]]:
    """Return resources that exclude the bad hosts of earlier runs, and notes about them."""
    earlier = EarlierRuns(None)
    reasons = bad_hosts(earlier.records(paths))
    if not reasons:
        nothing = ["excluding no host: none was slow, flaky or lost"] if paths else []
        return resources, [*earlier.notes, *nothing]
    known = scheduler().nodes_by_partition()
    names = {host: node_name(host, known) for host in reasons}
    nodes = tuple(dict.fromkeys(filter(None, names.values())))
    check_enough_left(resources, nodes, known)
    notes = [exclusion_note(host, names[host], reason) for host, reason in reasons.items()]
    return replace(resources, exclude=nodes), [*earlier.notes, *notes]


def exclusion_note(host: str, node: str, reason: str) -> str:
    """Return what the user reads about a bad host; `node` is empty if the scheduler does not know it."""
    unknown = f"not excluding {host!r}: {scheduler().NAME} has no such node"
    return f"excluding {node}: {reason}" if node else unknown


def bad_hosts(runs: Iterable[tuple[Path, Record]]) -> dict[str, str]:
    """Return the flagged hosts of several runs, and why; one that did well in a later run is left out."""
    reports = [(record.events[-1].time if record.events else 0.0, path, record) for path, record in runs]
    found: dict[str, str] = {}
    for _, path, record in sorted(reports, key=lambda report: report[0]):
        for row in report_hosts(record):
            if row.verdict:
                found[row.host] = f"{row.reason} in {path}"
            elif row.mean_ratio is not None:
                found.pop(row.host, None)
    return found


def node_name(host: str, known: Nodes) -> str:
    """Return what the scheduler calls a host, perhaps without its domain; empty if it has no such node."""
    if re.fullmatch(NODE_NAME, host) is None:
        return ""
    nodes = {node for several in known.values() for node in several}
    return next((name for name in (host, host.split(".")[0]) if name in nodes), "")


def check_enough_left(resources: Resources, nodes: Sequence[str], known: Nodes) -> None:
    """Reject a submission for which too few nodes are left."""
    placement = scheduler().placement(resources)
    left = NodesLeft.of(placement, known, nodes)
    if left.nodes and left.usable < placement.nodes:
        raise UsageError(
            f"without {', '.join(left.excluded)}, {left.usable} of {len(left.nodes)} nodes are left, but "
            f"{placement.nodes} are needed: use fewer --nodes, or omit --exclude-slow"
        )


def exclude_at_fault(events: Sequence[Event], host: str, job: QueuedJob, echo: Echo) -> None:
    """Exclude the nodes at fault from a job that has just been requeued: Slurm rejects that earlier.

    `host` is that of the worker whose death ended all ranks, if that is known.
    """
    hosts = list(dict.fromkeys([*hosts_at_fault(events), *filter(None, [host])]))
    try:
        if hosts and (found := nodes_at_fault(hosts, job, echo)):
            exclude(job, found, echo)
    except (RunError, UsageError) as error:
        echo(f"requeued on any node, although {', '.join(hosts)} lost workers: {error}")


def nodes_at_fault(hosts: Sequence[str], job: QueuedJob, echo: Echo) -> list[str]:
    """Return the nodes that a job must avoid from now on; none if too few others are left."""
    known, before = scheduler().nodes_by_partition(), scheduler().expand_nodes(job.placement.excluded)
    names = [name for host in hosts if (name := node_name(host, known)) and name not in before]
    if names and NodesLeft.of(job.placement, known, names).usable < job.placement.nodes:
        partition = ",".join(job.placement.partitions)
        echo(f"{', '.join(names)} lost workers, but the job needs all nodes of the partition {partition}")
        return []
    return names


def exclude(job: QueuedJob, nodes: Sequence[str], echo: Echo) -> None:
    """Add nodes to those that a requeued job must avoid."""
    together = [*filter(None, [job.placement.excluded]), *nodes]  # the new list replaces the old one
    for _ in range(UPDATE_TRIES):
        error = scheduler().exclude_nodes(job.id, together)
        if not error:
            echo(f"requeued without {', '.join(nodes)}, where workers were lost")
            return
        time.sleep(PAUSE_SECONDS)
    raise RunError(error)
