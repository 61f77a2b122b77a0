"""What all ranks of a script do together: agree on a call, and open the cluster."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Protocol, TypeVar

from mpi_ata import launch
from mpi_ata.clusters import Cluster, FaultPolicy, VirtualCluster
from mpi_ata.driver.opening import opened_ranks
from mpi_ata.errors import RunError, UsageError, in_users_code
from mpi_ata.job.tables import Tables
from mpi_ata.launch.signals import StopRequest, open_stop_request
from mpi_ata.layout import MANAGER
from mpi_ata.problems import AnyProblem
from mpi_ata.script.toml import to_toml
from mpi_ata.times import DrawnTimes
from mpi_ata.torch.loaders import importing_script
from mpi_ata.updates import Update


class Agreed(Protocol):
    """What the ranks must agree on before they begin."""

    @property
    def tables(self) -> Tables: ...
    @property
    def digest(self) -> bytes: ...


T = TypeVar("T", bound=Agreed)


def is_worker() -> bool:
    """Return whether this process is a worker's rank."""
    return launch.under_launcher() and launch.rank() != MANAGER


def joined(name: str, prepare: Callable[[], T], note: Callable[[T], str] = lambda _: "") -> tuple[T, str]:
    """Prepare a call on all ranks, or in this process alone; return what was prepared and the manager's note.

    If it fails on one rank, or differs, all ranks leave, and one says why.
    """
    if importing_script():  # the rank that waits for this process has the better message
        sys.exit(2)
    if not launch.under_launcher():
        found = prepare()
        return found, note(found)
    from mpi_ata.clusters.calls import Call, join

    try:
        found = prepare()
        call = Call(name, to_toml(found.tables), found.digest.hex(), note=note(found))
    except (UsageError, RunError) as error:
        call = Call(name, "", failure=str(error))
    except Exception as error:  # the other ranks wait for this one all the same
        call = Call(name, "", failure=str(in_users_code(f"{name} cannot be started", error)))
    answer = join(call)
    return found, answer.note


def catching_signals(grace: float) -> AbstractContextManager[StopRequest]:
    """Catch the signals that ask a run to stop, on the manager; a worker leaves that to the manager."""
    return open_stop_request(grace, on_ranks=launch.under_launcher(), is_worker=is_worker())


@contextmanager
def opened_cluster(
    problem: AnyProblem,
    times: DrawnTimes | None,
    seed: int,
    digest: bytes,
    stop_request: StopRequest,
    policy: FaultPolicy | None,
    exchange: str = "auto",
    update: Update | None = None,
) -> Iterator[Cluster | None]:
    """Yield the ranks as a cluster, or a simulation; a worker's rank serves first, then yields None."""
    if not launch.under_launcher():
        assert times is not None
        with closing(VirtualCluster(problem, times, seed, policy=policy)) as simulated:
            yield simulated
        return
    given = seed, digest, stop_request, policy, False, exchange, update
    with opened_ranks(problem, times, *given) as ranks:
        yield ranks
        if ranks is not None and stop_request:
            ranks.abort(stop_request.exit_code)
