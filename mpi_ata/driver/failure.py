"""A run that fails: its completed rounds are saved first, with the reason."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from mpi_ata.clusters import Cluster, VirtualCluster
from mpi_ata.driver.recorder import RunRecorder
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import DivergedError, LossError, RunError, TakenError, UsageError, in_users_code
from mpi_ata.methods import Method


class RoundBoundary:
    """The end of the latest completed round: the state as which a run that fails can be saved.

    Not where x has moved in the round that failed, nor in a simulation, which is to be repeated bit for bit:
    there the state that was taken last counts.
    """

    def __init__(self, method: Method, cluster: Cluster, trace: Trace) -> None:
        self._method, self._cluster, self._trace = method, cluster, trace
        self._unused = trace.used - self._finished_tasks()
        self.note()

    def _finished_tasks(self) -> int:
        return int(self._cluster.ledger.stats.state()["tasks"].sum())

    def note(self) -> None:
        """Take the present state as the end of a completed round."""
        self._mark, self._x, self._k = self._cluster.ledger.mark(), _point(self._method), self._method.k

    def settle(self, error: Exception) -> bool:
        """Return whether the run can be saved as it is now; a round that broke off is booked as wasted."""
        method, trace = self._method, self._trace
        if trace.round == method.k > self._k:  # the round is complete: what failed is its evaluation
            return not isinstance(error, DivergedError)
        taken = isinstance(self._cluster, VirtualCluster) or hasattr(method, "point_per_worker")
        replayed = taken and not isinstance(error, LossError)
        if replayed or _point(method) is not self._x or method.k != self._k:
            return False
        self._cluster.stop(np.arange(self._cluster.n))
        trace.settle(self._cluster.ledger, self._mark)
        trace.wasted += self._unused + self._finished_tasks() - trace.used
        return True


def _point(method: Method) -> object:
    """Return what stays the same until x moves; without asking workers for x, where they have it."""
    return getattr(method, "replica", None) or method.x


@contextmanager
def saved_on_failure(boundary: RoundBoundary, method: Method, recorder: RunRecorder | None) -> Iterator[None]:
    """Where rounds fail, save the completed ones and the reason, and say what is left of the run."""
    try:
        yield
    except TakenError:  # the file belongs to another run now
        raise
    except Exception as error:
        if not isinstance(error, RunError | UsageError):  # in an allocator or a method of the user's own
            error = in_users_code(f"round {method.k + 1} failed", error)
        whole = boundary.settle(error)
        raise (_recorded(error, whole, recorder) if recorder else error) from None


def _recorded(error: Exception, whole: bool, recorder: RunRecorder) -> Exception:
    """Record a failure, and return the error with what is left of the run."""
    recorder.fail(error, whole)
    if isinstance(error, UsageError):
        return error
    kind = LossError if isinstance(error, LossError) else RunError
    return kind(f"{error}\n{recorder.remains()}")
