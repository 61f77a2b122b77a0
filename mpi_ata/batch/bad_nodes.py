"""Nodes that a batch job must avoid: hosts that were slow, flaky or lost in earlier runs, or in its own."""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mpi_ata.batch.interface import Placement, QueuedJob, Resources, scheduler
from mpi_ata.errors import RunError, UsageError
from mpi_ata.runfile.hosts import hosts_at_fault, report_hosts
from mpi_ata.runfile.load import EarlierRuns
from mpi_ata.runfile.schema import Event, Record

NODE_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}"  # nothing else may get into a batch script
UPDATE_TRIES, PAUSE_SECONDS = 5, 0.5  # Slurm ends processes of a job that it requeues, perhaps ours too

Nodes = Mapping[str, Sequence[str]]  # of each partition


def nodes_for(placement: Placement, known: Nodes, more: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the nodes that a batch job could use, and those that it must not if it must avoid more."""
    nodes = dict.fromkeys(node for name in placement.partitions for node in known.get(name, ()))
    avoided = {*scheduler().expand_nodes(placement.excluded), *more}
    return list(nodes), [node for node in nodes if node in avoided]


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
    unknown = f"{scheduler().NAME} has no such node"
    notes = [
        f"excluding {names[host]}: {reason}" if names[host] else f"not excluding {host!r}: {unknown}"
        for host, reason in reasons.items()
    ]
    return replace(resources, exclude=nodes), [*earlier.notes, *notes]


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
    there, excluded = nodes_for(placement, known, nodes)
    left = len(there) - len(excluded)
    if there and left < placement.nodes:
        raise UsageError(
            f"without {', '.join(excluded)}, {left} of {len(there)} nodes are left, but "
            f"{placement.nodes} are needed: use fewer --nodes, or omit --exclude-slow"
        )


def exclude_at_fault(events: Sequence[Event], host: str, job: QueuedJob) -> str:
    """Exclude the nodes at fault from a job that has just been requeued, and return a note about that.

    Slurm rejects it earlier.  `host` is that of the worker whose death ended all ranks, if that is known.
    """
    hosts = list(dict.fromkeys([*hosts_at_fault(events), *filter(None, [host])]))
    try:
        return exclude_hosts(hosts, job) if hosts else ""
    except (RunError, UsageError) as error:
        return f"requeued on any node, although {', '.join(hosts)} lost workers: {error}"


def exclude_hosts(hosts: Sequence[str], job: QueuedJob) -> str:
    """Exclude the nodes of these hosts too, unless the job needs them, and return a note about that."""
    known, before = scheduler().nodes_by_partition(), scheduler().expand_nodes(job.placement.excluded)
    names = [name for host in hosts if (name := node_name(host, known)) and name not in before]
    if not names:
        return ""
    there, excluded = nodes_for(job.placement, known, names)
    if len(there) - len(excluded) < job.placement.nodes:
        partition = ",".join(job.placement.partitions)
        return f"{', '.join(names)} lost workers, but the job needs all nodes of the partition {partition}"
    together = [*filter(None, [job.placement.excluded]), *names]  # the new list replaces the old one
    if error := until_accepted(lambda: scheduler().exclude_nodes(job.id, together)):
        raise RunError(error)
    return f"requeued without {', '.join(names)}, where workers were lost"


def until_accepted(update: Callable[[], str]) -> str:
    """Update a requeued job, several times if that is rejected, and return the last error, or nothing."""
    for _ in range(UPDATE_TRIES):
        if not (error := update()):
            break
        time.sleep(PAUSE_SECONDS)
    return error
