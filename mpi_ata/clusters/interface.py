"""What every cluster promises, and what it returns."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from mpi_ata.abilities import declared
from mpi_ata.arrays import Array, BoolArray, IntArray, State
from mpi_ata.clusters.accounts import Ledger
from mpi_ata.clusters.identity import WorkerIdentity
from mpi_ata.clusters.sample_indices import SampleIndices
from mpi_ata.problems import AnyProblem
from mpi_ata.times import DrawnTimes

if TYPE_CHECKING:
    from mpi_ata.clusters.health import FaultPolicy


class Arrival(NamedTuple):
    """Finished work coming back."""

    worker: int
    result: Any  # the sum over its tasks, which may be overwritten; of a computation a list of TaskResult;
    # of orders that are summed, the last one has the sum of all, and the others None
    seconds: list[float]  # one entry per task
    overhead: float = 0.0  # turnaround of its order minus those seconds: transfer, queueing, waking up


class Lost(NamedTuple):
    """A worker that cannot be given work, from now on or for the time being.

    `kind` is "lost" (it died), "overdue", "failed" (a task raised), "bad-result", or "excluded" (it failed
    too often); after "lost" and "excluded" it never comes back.
    """

    worker: int
    tasks: int  # begun and not delivered; 0 for an idle worker
    why: str
    kind: str = "lost"


class Back(NamedTuple):
    """A worker that can be given work again."""

    worker: int
    seconds: list[float]  # of the tasks that it was tried with, whose results nobody uses
    why: str


class Cluster(Protocol):
    """Where tasks run, and the clock they run by.

    A worker holds one order at a time; with `together` it comes back as one arrival, otherwise task by task.
    After `stop` no arrival of that order is returned.  Nobody writes into an x that was handed over.  A
    cluster may also have `wait_some(tasks)`, which returns a list of arrivals with at most this many tasks.
    """

    n: int
    ledger: Ledger  # what became of each worker's tasks; only the cluster writes it
    available: BoolArray  # which workers can be given work; only the cluster writes it
    draws: SampleIndices | None  # the sequence that tasks share, where the problem asks for one
    grace_expired: Callable[[], bool]  # called while waiting: whether to give up and raise GraceExpired

    @property
    def identities(self) -> tuple[WorkerIdentity, ...]:
        """Who the workers are, so that later runs recognise them."""

    def now(self) -> float:
        """Return the time on the cluster's clock; it never goes back."""

    def start(
        self,
        workers: IntArray,
        x: Any,
        round: int,
        counts: IntArray | int = 1,
        together: bool = False,
        summed: bool = False,
    ) -> None:
        """Order counts[j] tasks at the point x from each workers[j], who must be idle and available.

        With `summed`, the cluster may add up all results in worker order: then the last arrival has the sum,
        and all others have None.
        """

    def wait(self, timeout: float | None = None) -> Arrival | Lost | Back:
        """Return the next Arrival, or the next worker that is Lost or Back.

        TimeoutError after `timeout` seconds; an error where nothing is running.
        """

    def stop(self, workers: IntArray) -> Array:
        """Stop what these workers have not delivered; return the seconds that each spent on it."""

    def overruns(self) -> dict[int, float]:
        """Return the seconds that workers spent on stopped tasks, after the stop, since the last call."""

    def idle(self) -> IntArray:
        """Return the workers that hold no order."""

    def state(self) -> State:
        """Return what must be saved after a round so that another process can resume with the next one."""

    def restore(self, state: State, workers: State | None = None) -> None:
        """Resume from a saved state; orders that could not be saved are lost, and their workers idle."""

    def take_over(self, workers: State, rows: list[tuple[int, int]]) -> None:
        """Start from what is saved of other workers: `rows` pairs a worker here with its row there."""

    def map(
        self,
        function: Callable[..., Any],
        *items: Iterable[Any],
        ordered: bool = True,
        on_error: str = "raise",
        max_losses: int = 2,
        seed: int | None = None,
    ) -> Iterator[Any]:
        """Yield function(item) for each item, in order; or pairs of index and result as they come.

        An item without a result is an ItemError: raised, or with `on_error` = "return" in its place.  The
        cluster must have been opened without a problem.
        """

    def close(self) -> None:
        """End all work for good."""


@dataclass(frozen=True)
class ClusterSettings:
    """What a job asks of the cluster that works for it, the same on all ranks."""

    problem: AnyProblem
    times: DrawnTimes | None = None  # how long tasks last, where that is drawn
    seed: int = 0
    report_drawn: bool = False  # whether workers report drawn times rather than measured ones
    digest: bytes = b""  # of job and files
    policy: "FaultPolicy | None" = None  # what to do about workers that misbehave
    exchange: str = "star"  # how x and results travel: "auto", "star" or "chain"


class ClusterAbilities(NamedTuple):
    """What a cluster may have beside the above; None where it does not."""

    simulated: bool = False  # whether it repeats bit for bit, on a clock of its own, and costs nothing
    evaluate: Callable[[Array, range], list[float]] | None = None  # on workers: parts of an evaluation
    problem: AnyProblem | None = None  # whose tasks workers do
    divide: Callable[[IntArray], IntArray] | None = None  # quotas, given what jobs have ordered that share it

    @classmethod
    def of(cls, cluster: object) -> "ClusterAbilities":
        """Return what a cluster has."""
        return declared(cls, cluster)


def named(worker: int, identity: WorkerIdentity) -> str:
    """Return a worker's name for messages."""
    return f"worker {worker} (host {identity.host}, slot {identity.local_index})"
