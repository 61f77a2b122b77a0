"""Executor: futures of the standard library, on the workers of a script."""

import atexit
from collections.abc import Callable
from concurrent import futures
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, cast

from mpi_ata.clusters import Cluster
from mpi_ata.clusters.farm import Farm, Journal, MapOptions
from mpi_ata.errors import ItemError, RunError, UsageError
from mpi_ata.script.pool import Pool

Submitted = tuple["futures.Future[Any]", tuple[Any, ...]]


def call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Do what was submitted, on a worker."""
    return function(*args, **kwargs)


class Executor(futures.Executor):
    """A `concurrent.futures.Executor` on the workers of a Pool: its arguments, but `out` and `resume`.

    A thread serves the workers, so that futures proceed while the caller computes.  Functions travel with
    each call: for many calls of one function with large data, use Pool.map().
    """

    def __init__(self, workers: int | None = None, **options: Any) -> None:
        if given := [name for name in ("out", "resume") if options.get(name)]:
            raise UsageError(f"Executor() has no argument {given[0]!r}; use a Pool, which can be resumed")
        self._pool = Pool(workers, **options)
        farm: Any = self._pool._opened()
        farm._problem.journal = Journal()  # futures come in no order by which results could be found again
        options_of_map = MapOptions(on_error="return")
        self._farm = Farm(cast(Cluster, farm), farm._problem, call, [], options_of_map, self._feed)
        self._queue: SimpleQueue[Submitted | None] = SimpleQueue()  # None is the last entry
        self._running: dict[int, futures.Future[Any]] = {}
        self._closed, self._drained = False, False
        self._thread = Thread(target=self._serve, name="mpi_ata executor", daemon=True)
        self._thread.start()
        atexit.register(self.shutdown)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "futures.Future[Any]":
        """Return a future of function(*args, **kwargs)."""
        if self._closed or not self._thread.is_alive():
            raise RunError(
                "an executor cannot be used after shutdown(), nor after an error that has ended it"
            )
        future: futures.Future[Any] = futures.Future()
        self._queue.put((future, (function, args, kwargs)))
        return future

    def _serve(self) -> None:
        """Give items to workers until the last entry; only this thread calls MPI meanwhile."""
        try:
            for index, result in self._farm.results():
                self._farm.forget(index)
                _settle(self._running.pop(index), result)
        except BaseException as error:  # of which the callers of result() have to know
            self._cancel_waiting()
            for future in self._running.values():
                future.set_exception(RunError(f"the workers cannot be used any more: {error}"))

    def _feed(self) -> None:
        """Move what was submitted to the farm, as much as it takes: the rest can still be cancelled."""
        while not self._drained and self._farm.takes_more():
            try:
                entry = self._queue.get(block=not self._farm.is_open)
            except Empty:
                return
            if entry is None:
                self._drained = True
            elif entry[0].set_running_or_notify_cancel():
                self._running[self._farm.add(entry[1])] = entry[0]

    def _cancel_waiting(self) -> None:
        try:
            while True:
                if entry := self._queue.get_nowait():
                    entry[0].cancel()
        except Empty:
            return

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the workers leave when all is done; the executor cannot be used afterwards."""
        if cancel_futures:
            self._cancel_waiting()
        self._closed = True
        self._queue.put(None)
        if wait:
            self._thread.join()
            atexit.unregister(self.shutdown)
            self._pool.close()


def _settle(future: "futures.Future[Any]", result: Any) -> None:
    """Set the result of a future, or what its function has raised, with the traceback from there."""
    if not isinstance(result, ItemError):
        future.set_result(result)
        return
    raised, told = result.__cause__, RunError(str(result))
    if raised is not None:
        raised.__cause__ = told
    future.set_exception(raised or told)
