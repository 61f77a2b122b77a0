"""Pool: the workers of a script, with the methods that samplers and optimizers ask of a pool."""

import atexit
import sys
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import suppress
from typing import Any, cast

from mpi_ata import launch
from mpi_ata.clusters import FaultPolicy
from mpi_ata.clusters.farm import Farming
from mpi_ata.errors import RunError
from mpi_ata.script.entry import entry_point, reject_unknown
from mpi_ata.script.farm_run import FarmRun
from mpi_ata.script.ranks import Opening, cluster, is_worker
from mpi_ata.times import DrawnTimes, Law


class Pool:
    """A farm with the methods of `multiprocessing.Pool` and `schwimmbad.MPIPool`.

    All ranks call this, as they call mpi_ata.cluster(), whose other arguments it also takes.  Maps take the
    options of cluster.map() too.  `size` is the number of workers.  `state` has values that are saved with
    the run: those that are set, not changed in place; calls before that are not needed by a resumed script.
    """

    size = 0  # workers
    state: MutableMapping[str, Any]
    _farm: Farming | None = None  # while it is open, on the manager

    @entry_point
    def __init__(
        self,
        workers: int | None = None,
        times: DrawnTimes | Law | None = None,
        seed: int = 0,
        faults: FaultPolicy | None = None,
        **recording: Any,
    ) -> None:
        reject_unknown("Pool", recording, Opening.__dataclass_fields__)
        self._block = cluster(times=times, seed=seed, workers=workers, faults=faults, **recording)
        opened = self._block.__enter__()
        self.size, self._farm = opened.n, cast(Farming, opened)
        self.state = cast(FarmRun, self._farm._problem.journal).values
        atexit.register(self._close_at_exit)

    def map(
        self,
        function: Callable[..., Any],
        iterable: Iterable[Any],
        callback: Callable[[Any], Any] | None = None,
        chunksize: int | None = None,
        **options: Any,
    ) -> list[Any]:
        """Return function(item) for each item, in order; `callback` is called with each of the results.

        `chunksize` is not used here, nor in other methods: the numbers of items that workers get are learned.
        """
        results = []
        for result in self.imap(function, iterable, **options):
            results.append(result)
            if callback is not None:
                callback(result)
        return results

    def starmap(
        self,
        function: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        **options: Any,
    ) -> list[Any]:
        """Return function(*item) for each item, in order."""
        return list(self._opened().starmap(function, iterable, **options))

    def imap(
        self,
        function: Callable[..., Any],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        **options: Any,
    ) -> Iterator[Any]:
        """Yield function(item) for each item, in order."""
        return self._opened().map(function, iterable, **options)

    def imap_unordered(
        self,
        function: Callable[..., Any],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        **options: Any,
    ) -> Iterator[Any]:
        """Yield function(item) for each item, as they come."""
        return (found for _, found in self._opened().map(function, iterable, ordered=False, **options))

    def _opened(self) -> Farming:
        if self._farm is None:  # not a ValueError, of which SciPy makes a message of its own
            raise RunError("a pool cannot be used after close(), nor in a task, on a worker; use it before")
        return self._farm

    @property
    def _processes(self) -> int:
        """The number of workers, where multiprocessing.Pool has it."""
        return self.size

    @property
    def rank(self) -> int:
        """The rank of this process; 0 is the manager's."""
        return launch.rank() if launch.under_launcher() else 0

    @property
    def comm(self) -> Any:
        """The communicator of all ranks; None in a simulation."""
        if not launch.under_launcher():
            return None
        from mpi_ata.clusters.mpi.library import world

        return world()

    @staticmethod
    def enabled() -> bool:
        """Return whether a launcher has started ranks."""
        return launch.world_size() > 1

    def is_master(self) -> bool:
        """Return whether this process is the manager; no other one gets further than Pool()."""
        return not is_worker()

    def is_worker(self) -> bool:
        """Return whether this process is a worker."""
        return is_worker()

    def wait(self, callback: Callable[..., Any] | None = None) -> None:
        """Do nothing: workers wait in Pool()."""

    def close(self) -> None:
        """Let the workers leave; the pool cannot be used afterwards."""
        self.__exit__(None, None, None)

    terminate = close

    def _close_at_exit(self) -> None:
        """Close a pool that the script has left open; an error that has ended the script ends its run too."""
        error = getattr(sys, "last_value", None)
        with suppress(SystemExit):  # Python has its exit code by now
            self.__exit__(error and type(error), error, None)

    def join(self) -> None:
        """Do nothing: close() has waited for the workers."""

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *error: Any) -> bool | None:
        if self._farm is None:
            return None
        self._farm = None
        atexit.unregister(self._close_at_exit)
        return self._block.__exit__(*error)

    def __getstate__(self) -> dict[str, Any]:
        """Send nothing of a pool with an object that has one, as samplers do: no worker can use it."""
        return {}
