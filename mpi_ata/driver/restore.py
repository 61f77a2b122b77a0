"""Bringing a run to where it starts from: an earlier save of it, or what earlier runs know of its workers."""

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mpi_ata.allocators import Allocator
from mpi_ata.allocators.change_detection import SpeedChange
from mpi_ata.clusters.ledger import in_flight
from mpi_ata.driver.plan import Start
from mpi_ata.driver.recorded import RecordedMethod, RecordedWorkers
from mpi_ata.driver.trace import Regret, Trace
from mpi_ata.errors import UsageError, one_line
from mpi_ata.runfile.prior import RunStats, counted, kept_workers, match_prior, same_workers
from mpi_ata.runfile.record import Record
from mpi_ata.times import DrawnTimes

log = logging.getLogger("mpi_ata")

ALLOCATOR_KEYS = ("allocator.name", "allocator.file", "allocator.class")


class Note(NamedTuple):
    """Something that happened to a run beside its rounds."""

    kind: str
    text: str


def allocator_of(method: RecordedMethod) -> Allocator | None:
    """Return what decides the quotas; None if a user's method has no allocator."""
    allocator: Allocator | None = getattr(method, "allocator", None)
    return allocator


def track_regret(trace: Trace, method: RecordedMethod, times: DrawnTimes | None) -> None:
    """Let a trace add up the regret, where the true mean times are known."""
    allocator = allocator_of(method)
    if times is not None and allocator is not None:
        trace.track_regret(Regret(times.means, allocator.budget))


def speed_changes(method: RecordedMethod) -> Sequence[SpeedChange]:
    """Return the workers whose speed changed, as the allocator noticed in the last round, if it can."""
    changes: Sequence[SpeedChange] = getattr(allocator_of(method), "speed_changes", ())
    return changes


def missing_state(method: RecordedMethod) -> str:
    """Return what the user's own parts of a method lack for a run to be resumable."""
    for part in (method, allocator_of(method), getattr(method, "update", None)):
        if part is not None and not (hasattr(part, "state") and hasattr(part, "restore")):
            return f"{type(part).__name__} has no state() and restore(state)"
    return ""


def begin(plan: Start, method: RecordedMethod, cluster: RecordedWorkers, trace: Trace) -> list[Note]:
    """Bring a run to where it starts from, and return what to record of that."""
    if plan.earlier is None:
        return [Note("started", f"on {counted(cluster.n, 'worker')}"), *_warm_start(plan, method, cluster)]
    try:
        if missing := missing_state(method):
            raise ValueError(missing)
        return list(_resume(plan.earlier, plan.changes, method, cluster, trace))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UsageError(f"{plan.file and plan.file.path}: cannot be resumed: {one_line(error)}") from None


def _warm_start(plan: Start, method: RecordedMethod, cluster: RecordedWorkers) -> Iterator[Note]:
    allocator = allocator_of(method)
    if plan.prior and allocator is not None:
        yield from _inherit(allocator, plan.prior, cluster)


def _inherit(
    allocator: Allocator, runs: Sequence[RunStats], cluster: RecordedWorkers, same_run: bool = False
) -> Iterator[Note]:
    """Let an allocator start with what runs know of the workers."""
    if not hasattr(allocator, "inherit"):
        log.warning("%s has no inherit(rounds, known), so it starts cold", type(allocator).__name__)
        return
    known = match_prior(runs, cluster.identities, same_run)
    allocator.inherit(known.rounds, known.columns)
    yield Note("warm-started", known.summary())


def _resume(
    record: Record, changes: Sequence[str], method: RecordedMethod, cluster: RecordedWorkers, trace: Trace
) -> Iterator[Note]:
    method.restore(record.method)
    trace.restore(record.totals, record.trace, record.metrics)
    yield Note("resumed", f"at round {method.k:,} on {counted(cluster.n, 'worker')}")
    yield from (Note("changed", change) for change in changes)
    allocator, same = allocator_of(method), same_workers(record.identities, cluster.identities)
    if same:
        before = cluster.ledger.mark()
        cluster.restore(record.cluster, record.workers)
        trace.lost += int(cluster.ledger.changes(before).lost.sum())
    else:
        _move(record, method, cluster, trace)
    exchanged = any(change.startswith(ALLOCATOR_KEYS) for change in changes)
    if allocator is not None and same and not exchanged:
        allocator.restore(record.allocator)
    elif allocator is not None:
        yield from _inherit(allocator, [*record.prior, record.source], cluster, same_run=True)


def _move(record: Record, method: RecordedMethod, cluster: RecordedWorkers, trace: Trace) -> None:
    """Continue on other workers: those that are gone are dropped, and what they had begun is lost."""
    if getattr(method, "owns_data", False) and len(record.identities) != cluster.n:
        raise ValueError(
            f"each worker owns its part of the data, and there were {len(record.identities)} workers; "
            f"now there are {cluster.n}"
        )
    rows = kept_workers(record.identities, cluster.identities)
    cluster.take_over(record.workers, rows)
    if cluster.draws is not None:
        cluster.draws.restore(record.cluster, idle=True)
    trace.earlier = trace.worker_time
    trace.lost += int(np.sum(in_flight(record.cluster)))
