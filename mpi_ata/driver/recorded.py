"""What of a method and of its workers is recorded in a run file, and restored from one."""

from typing import Any, Protocol

from mpi_ata.allocators import Allocator
from mpi_ata.arrays import State
from mpi_ata.clusters import WorkerIdentity
from mpi_ata.clusters.draws import Draws
from mpi_ata.clusters.ledger import Ledger


class RecordedWorkers(Protocol):
    """Who does the tasks of a run, and the accounts of them: every cluster, and the ranks of a DDP script."""

    n: int
    ledger: Ledger
    draws: Draws | None

    @property
    def identities(self) -> tuple[WorkerIdentity, ...]: ...
    def state(self) -> State: ...
    def restore(self, state: State, workers: State | None = None) -> None: ...
    def take_over(self, workers: State, rows: list[tuple[int, int]]) -> None: ...


class RecordedMethod(Protocol):
    """How far a run is, and what decides its quotas: every method, and Balance."""

    x: Any
    k: int

    @property
    def allocator(self) -> Allocator | None: ...
    def state(self) -> State: ...
    def restore(self, state: State) -> None: ...
