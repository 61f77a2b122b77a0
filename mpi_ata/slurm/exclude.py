"""Nodes that a submitted job must avoid: hosts that were slow, flaky or lost in earlier runs."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mpi_ata.errors import UsageError
from mpi_ata.runfile.earlier import EarlierRuns
from mpi_ata.runfile.hosts import report_hosts
from mpi_ata.runfile.record import Record
from mpi_ata.slurm import commands
from mpi_ata.slurm.resources import Resources

NODE_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}"  # nothing else may get into a batch script

Nodes = Mapping[str, Sequence[str]]  # of each partition


def without_bad_hosts(resources: Resources, paths: Sequence[Path]) -> tuple[Resources, list[str]]:
    """Return resources that exclude the bad hosts of earlier runs, and notes about them."""
    earlier = EarlierRuns(None)
    reasons = bad_hosts(earlier.records(paths))
    if not reasons:
        nothing = ["excluding no host: none was slow, flaky or lost"] if paths else []
        return resources, [*earlier.notes, *nothing]
    known = commands.nodes_by_partition()
    names = {host: node_name(host, known) for host in reasons}
    nodes = tuple(dict.fromkeys(filter(None, names.values())))
    check_enough_left(resources, nodes, known)
    notes = [exclusion_note(host, names[host], reason) for host, reason in reasons.items()]
    return replace(resources, exclude=nodes), [*earlier.notes, *notes]


def exclusion_note(host: str, node: str, reason: str) -> str:
    """Return what the user reads about a bad host; `node` is empty if Slurm does not know it."""
    return f"excluding {node}: {reason}" if node else f"not excluding {host!r}: Slurm has no such node"


def bad_hosts(runs: Iterable[tuple[Path, Record]]) -> dict[str, str]:
    """Return the flagged hosts of several runs, and why; one that did well in a later run is left out."""
    reports = [(last_event(record), path, report_hosts(record)) for path, record in runs]
    found: dict[str, str] = {}
    for _, path, rows in sorted(reports, key=lambda report: report[0]):
        for row in rows:
            if row.verdict:
                found[row.host] = f"{row.reason} in {path}"
            elif row.mean_ratio is not None:
                found.pop(row.host, None)
    return found


def last_event(record: Record) -> float:
    """Return when something was last recorded of a run, in seconds since 1970."""
    return record.events[-1].time if record.events else 0.0


def node_name(host: str, known: Nodes) -> str:
    """Return what Slurm calls a host, which may be its name without the domain; empty if it has none."""
    if re.fullmatch(NODE_NAME, host) is None:
        return ""
    nodes = {node for several in known.values() for node in several}
    return next((name for name in (host, host.split(".")[0]) if name in nodes), "")


def nodes_left(known: Nodes, partitions: Iterable[str], excluded: Collection[str]) -> list[str]:
    """Return the nodes of some partitions that are not excluded."""
    nodes = dict.fromkeys(node for name in partitions for node in known.get(name, ()))
    return [node for node in nodes if node not in excluded]


def check_enough_left(resources: Resources, nodes: Sequence[str], known: Nodes) -> None:
    """Reject a submission for which too few nodes are left."""
    excluded = {*nodes, *commands.expand_nodes(resources.user_excluded)}
    everywhere = nodes_left(known, resources.partitions, ())
    left, needed = len(nodes_left(known, resources.partitions, excluded)), resources.min_nodes
    if everywhere and left < needed:
        without = ", ".join(node for node in everywhere if node in excluded)
        raise UsageError(
            f"without {without}, {left} of {len(everywhere)} nodes are left, but {needed} are needed: "
            "use fewer --nodes, or omit --exclude-slow"
        )
