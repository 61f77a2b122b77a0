"""Bringing a run to where it starts from: an earlier save of it, or what earlier runs know of its workers."""

import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from mpi_ata.allocators import Allocator
from mpi_ata.allocators.interface import AllocatorAbilities
from mpi_ata.arrays import State
from mpi_ata.clusters import WorkerIdentity
from mpi_ata.clusters.accounts import Ledger, in_flight
from mpi_ata.clusters.interface import ClusterAbilities
from mpi_ata.clusters.sample_indices import SampleIndices
from mpi_ata.driver.plan import RunStart
from mpi_ata.driver.trace import Regret, Trace
from mpi_ata.errors import UsageError, one_line
from mpi_ata.launch.environment import RELEASED
from mpi_ata.methods.interface import MethodAbilities
from mpi_ata.runfile.priors import RunStats, counted, kept_workers, match_prior, same_workers
from mpi_ata.runfile.schema import Record
from mpi_ata.times import DrawnTimes


class RecordedWorkers(Protocol):
    """Who does the tasks of a run, and the accounts of them: every cluster, and the ranks of a DDP script."""

    n: int
    ledger: Ledger
    draws: SampleIndices | None

    @property
    def identities(self) -> tuple[WorkerIdentity, ...]: ...
    def state(self) -> State: ...
    def restore(self, state: State, workers: State | None = None) -> None: ...
    def take_over(self, workers: State, rows: list[tuple[int, int]]) -> None: ...


@runtime_checkable
class Resumable(Protocol):
    """What can be saved and restored, so that a run can be resumed."""

    def state(self) -> State: ...
    def restore(self, state: State) -> None: ...


class RecordedMethod(Resumable, Protocol):
    """How far a run is, and what decides its quotas: every method, and Balance."""

    x: Any
    k: int

    @property
    def allocator(self) -> Allocator | None: ...


log = logging.getLogger("mpi_ata")

ALLOCATOR_KEYS = ("allocator.name", "allocator.file", "allocator.class")


class Note(NamedTuple):
    """Something that happened to a run beside its rounds."""

    kind: str
    text: str


def allocator_of(method: RecordedMethod) -> Allocator | None:
    """Return what decides the quotas; None if a user's method has no allocator."""
    return MethodAbilities.of(method).allocator


def track_regret(trace: Trace, method: RecordedMethod, times: DrawnTimes | None) -> None:
    """Let a trace add up the regret, where the true mean times are known."""
    allocator = allocator_of(method)
    if times is not None and allocator is not None:
        trace.track_regret(Regret(times.means, allocator.budget))


def missing_state(*parts: object) -> str:
    """Return what the user's own parts of a method, and itself, lack for a run to be resumable."""
    for part in parts:
        if part is not None and not isinstance(part, Resumable):
            return f"{type(part).__name__} has no state() and restore(state)"
    return ""


def begin(start: RunStart, method: RecordedMethod, cluster: RecordedWorkers, trace: Trace) -> list[Note]:
    """Bring a run to where it starts from, and return what to record of that."""
    can = MethodAbilities.of(method)
    shared = (
        [Note("shared", "its workers serve other jobs too")] if ClusterAbilities.of(cluster).divide else []
    )
    if start.earlier is None:
        started = Note("started", f"on {counted(cluster.n, 'worker')}")
        return [started, *shared, *_inherit(can.allocator, start.prior, cluster)]
    try:
        if missing := missing_state(method, can.allocator, can.update):
            raise ValueError(missing)
        return [*_resume(start.earlier, start.changes, method, can, cluster, trace), *shared]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UsageError(f"{start.file and start.file.path}: cannot be resumed: {one_line(error)}") from None


def _inherit(
    allocator: Allocator | None, runs: Sequence[RunStats], cluster: RecordedWorkers, same_run: bool = False
) -> Iterator[Note]:
    """Let an allocator start with what runs know of the workers."""
    if allocator is None or not runs:
        return
    if (inherit := AllocatorAbilities.of(allocator).inherit) is None:
        log.warning("%s has no inherit(rounds, known), so it starts cold", type(allocator).__name__)
        return
    known = match_prior(runs, cluster.identities, same_run)
    inherit(known.rounds, known.columns)
    yield Note("warm-started", known.summary())


def _resume(
    record: Record,
    changes: Sequence[str],
    method: RecordedMethod,
    can: MethodAbilities,
    cluster: RecordedWorkers,
    trace: Trace,
) -> Iterator[Note]:
    method.restore(record.method)
    trace.restore(record.totals, record.trace, record.metrics)
    yield Note("resumed", f"at {record.position} on {counted(cluster.n, 'worker')}")
    if hosts := os.environ.get(RELEASED):
        yield Note("released", f"{hosts}: given back, as the run needs fewer nodes")
    yield from (Note("changed", change) for change in changes)
    if same := same_workers(record.identities, cluster.identities):
        before = cluster.ledger.mark()
        cluster.restore(record.cluster, record.workers)
        trace.lost += int(cluster.ledger.changes(before).lost.sum())
    else:
        _move(record, can.owns_data, cluster, trace)
    exchanged = any(change.startswith(ALLOCATOR_KEYS) for change in changes)
    allocator = allocator_of(method)  # which its restore() may have built
    if allocator is not None and same and not exchanged:
        allocator.restore(record.allocator)
    else:
        yield from _inherit(allocator, [*record.prior, record.source], cluster, same_run=True)


def _move(record: Record, owns_data: bool, cluster: RecordedWorkers, trace: Trace) -> None:
    """Continue on other workers: those that are gone are dropped, and what they had begun is lost."""
    if owns_data and len(record.identities) != cluster.n:
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
