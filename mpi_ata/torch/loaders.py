"""Loader processes: they read the batches of coming tasks while a rank computes.

They are forked from a server that is started afresh, never from the rank itself: a process that uses MPI must
not be forked.  Each reads one batch at a time and keeps it until it is fetched.
"""

import atexit
import multiprocessing
import os
import random
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np

from mpi_ata.errors import RunError, describe_error, one_line
from mpi_ata.launch import without_rank
from mpi_ata.torch.devices import import_torch
from mpi_ata.torch.reading import Reader, Request
from mpi_ata.torch.user_modules import UserModules

START = (
    "with num_workers, loader processes import the script: what starts the run must be under "
    "if __name__ == '__main__':, and dataset and collate_fn must be defined outside of functions"
)
Key = tuple[int, int]


class Loaders:
    """Loader processes of one rank; what they read ahead and nobody asks for is dropped."""

    def __init__(self, reader: Reader, count: int) -> None:
        import_torch().multiprocessing  # noqa: B018  (from now on, tensors are sent through shared memory)
        self._processes = [_started(reader) for _ in range(count)]
        self._held: dict[Any, Key | None] = {}  # by connection: the batch that its process reads, or has read
        atexit.register(self.close)  # before multiprocessing waits for its processes
        for process, connection in self._processes:
            self._held[connection] = None
            _answer(connection, process, START)
        self._ahead: Iterator[Request] = iter(())
        self._window: deque[Request] = deque()  # the next requests, as far as they are known

    def expect(self, requests: Iterable[Request]) -> None:
        """Read these batches ahead, in their order, as far as there are processes for it."""
        self._ahead = iter(requests)
        self._window.clear()
        self._read_ahead()

    def expects(self, request: Request) -> bool:
        """Return whether a batch is among those to be read next."""
        return any(each.key == request.key for each in self._window)

    def get(self, request: Request) -> Any:
        """Return a batch, and let its process read another one."""
        while self.expects(request):
            self._window.popleft()
        holders = [connection for connection, key in self._held.items() if key == request.key]
        connection = holders[0] if holders else self._ordered(request)
        batch = self._fetched(connection)
        self._read_ahead()
        return batch

    def _ordered(self, request: Request) -> Any:
        """Let a process read what no process was asked for, and return its connection."""
        connection = self._free() or next(iter(self._held))
        if self._held[connection] is not None:
            self._fetched(connection)
        self._order(connection, request)
        return connection

    def _order(self, connection: Any, request: Request) -> None:
        self._held[connection] = request.key
        connection.send(request)

    def _read_ahead(self) -> None:
        """Give the next requests to free processes."""
        self._window.extend(islice(self._ahead, len(self._processes) - len(self._window)))
        for request in self._window:
            if request.key not in self._held.values() and (connection := self._free()) is not None:
                self._order(connection, request)

    def _free(self) -> Any:
        """Return a process that reads nothing and holds nothing that is expected; None if there is none."""
        expected = {request.key for request in self._window}
        for connection, key in self._held.items():
            if key is not None and key not in expected and connection.poll():
                self._fetched(connection)
            if self._held[connection] is None:
                return connection
        return None

    def _fetched(self, connection: Any) -> Any:
        self._held[connection] = None
        process = next(process for process, own in self._processes if own is connection)
        why = "a loader process has ended: it was killed, crashed or ran out of memory"
        batch, error = _answer(connection, process, why)
        if error:
            raise RunError(f"a loader process cannot read a batch: {error}")
        return batch

    def close(self) -> None:
        """End all processes, whatever they are doing."""
        atexit.unregister(self.close)
        for process, connection in self._processes:
            process.kill()
            process.join()
            connection.close()


def _started(reader: Reader) -> tuple[Any, Any]:
    """Start a loader process, and return it with a connection to it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", __name__])
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, UserModules(), reader), daemon=True)
    try:
        with without_rank(os.environ):
            process.start()
    except Exception as error:  # what cannot be pickled raises anything
        raise RunError(f"a loader process cannot be started: {one_line(error)}; {START}") from None
    there.close()
    return process, here


def _answer(connection: Any, process: Any, otherwise: str) -> Any:
    """Return what a process has sent; RunError with this explanation if it has ended."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        process.join(1.0)
        raise RunError(f"{otherwise} (exit code {process.exitcode})") from None


def _serve(connection: Any, modules: UserModules, reader: Reader) -> None:
    """Read batches until the rank closes the connection, or ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # they are meant for the rank
    threading.Thread(target=_end_with_rank, daemon=True).start()
    import_torch().set_num_threads(1)
    connection.send("ready")
    with suppress(EOFError, OSError):  # the rank has ended
        while True:
            _reply(connection, _read(reader, connection.recv()))


def _end_with_rank() -> None:
    rank = multiprocessing.parent_process()
    if rank is not None:
        rank.join()
        os._exit(1)


def _read(reader: Reader, request: Request) -> tuple[Any, str]:
    """Return a batch, or what went wrong; transforms may draw from any of the global generators."""
    random.seed(request.seed)
    np.random.seed(request.seed % 2**32)  # noqa: NPY002
    try:
        return reader.read(request), ""
    except Exception as error:
        return None, describe_error(error)


def _reply(connection: Any, answer: tuple[Any, str]) -> None:
    try:
        connection.send(answer)
    except OSError:
        raise
    except Exception as error:  # what cannot be pickled raises anything
        connection.send((None, f"it cannot be sent to its task: {one_line(error)}"))


def importing_script() -> bool:
    """Return whether this process imports the script only to find its classes and functions."""
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))
