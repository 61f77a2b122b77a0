"""How minibatches are read: by the rank itself, or by loader processes, ahead, while the rank computes.

Loader processes are forked from a server that is started afresh, never from the rank itself: a process that
uses MPI must not be forked.  Each reads one minibatch at a time and keeps it until it is fetched.
"""

import atexit
import importlib.util
import multiprocessing
import os
import random
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from mpi_ata.arrays import IntArray
from mpi_ata.errors import RunError, UsageError, describe_error, one_line
from mpi_ata.launch import without_rank
from mpi_ata.torch.devices import import_torch

TRAINING = 0  # the first dataset of a reader; those for evaluations follow


class ReadRequest(NamedTuple):
    """Which samples of which dataset make a minibatch, and the seed of what is drawn while they are read."""

    dataset: int
    seed: int
    samples: IntArray

    @property
    def key(self) -> tuple[int, int]:
        """Return what tells minibatches apart: seeds are those of tasks, or parts of an evaluation."""
        return self.dataset, self.seed


Collate = Callable[[list[Any]], Any]


class Reader:
    """Reads minibatches of several datasets; `collate_fn` makes one of samples."""

    def __init__(self, datasets: Sequence[Any], collate_fn: Collate | None) -> None:
        self.datasets, self._collate = tuple(datasets), collate_fn
        for dataset in datasets:
            if isinstance(dataset, import_torch().utils.data.DataLoader):
                raise UsageError("a DataLoader was passed as the dataset; pass loader.dataset and batch_size")
            if not hasattr(dataset, "__len__"):
                rule = "it needs a length and samples by number"
                raise UsageError(f"the dataset {type(dataset).__name__} has no length; {rule}")
            if not len(dataset):
                raise UsageError("a dataset for training or testing must have at least one sample")

    def read(self, request: ReadRequest) -> Any:
        """Return a minibatch, which depends on the request alone if transforms draw from PyTorch."""
        torch, dataset, numbers = import_torch(), self.datasets[request.dataset], request.samples
        torch.default_generator.manual_seed(request.seed)  # torch.manual_seed costs as much as a small task
        if hasattr(dataset, "minibatch"):
            return dataset.minibatch(numbers)
        if isinstance(dataset, torch.utils.data.TensorDataset) and self._collate is None:
            return dataset[torch.from_numpy(numbers)]
        collate = self._collate or torch.utils.data.default_collate
        if hasattr(dataset, "__getitems__"):  # PyTorch's own way to fetch many at once
            return collate(dataset.__getitems__(numbers.tolist()))
        return collate([dataset[number] for number in numbers.tolist()])

    def part(self, dataset: int, part: int, size: int) -> ReadRequest:
        """Return the request for one of the equal parts of a dataset with up to `size` samples each."""
        length = len(self.datasets[dataset])
        parts = -(-length // size)
        return ReadRequest(dataset, part, np.arange(part * length // parts, (part + 1) * length // parts))


class UserModules:
    """Imports, where it is unpickled, the modules that are named by their files here.

    It must come before the objects that need them.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to import them again."""
        files = {name: str(module.__file__) for name, module in sys.modules.items() if "@" in name}
        return _imported, (files,)


def _imported(files: dict[str, str]) -> UserModules:
    for name, file in files.items():
        spec = importlib.util.spec_from_file_location(name, file)
        if name not in sys.modules and spec is not None and spec.loader is not None:
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
    return UserModules()


START = (
    "with num_workers, loader processes import the script: what starts the run must be under "
    "if __name__ == '__main__':, and dataset and collate_fn must be defined outside of functions"
)
ENDED = "a loader process has ended: it was killed, crashed or ran out of memory"
Key = tuple[int, int]


class Loaders:
    """Loader processes of one rank; without any, the rank reads.

    What they read ahead and nobody asks for is dropped.
    """

    def __init__(self, reader: Reader, count: int) -> None:
        self._reader, self._count = reader, count
        self.processes: dict[Any, Any] = {}  # by connection
        self._held: dict[Any, Key | None] = {}  # by connection: what its process reads, or has read
        self._ahead: Iterator[ReadRequest] = iter(())
        self._window: deque[ReadRequest] = deque()  # the next requests, as far as they are known
        if count:
            import_torch().multiprocessing  # noqa: B018  (from now on, tensors are sent through shared memory)
            atexit.register(self.close)  # before multiprocessing waits for its processes
            self._start(count)

    def _start(self, count: int) -> None:
        """Start processes, all at the same time, and wait until they are ready."""
        started = [_started(self._reader) for _ in range(count)]
        self.processes |= started
        for connection, _ in started:
            self._received(connection, START)

    def expect(self, requests: Iterable[ReadRequest]) -> None:
        """Read these minibatches ahead, in their order, as far as there are processes for it."""
        if self._count:
            self._ahead = iter(requests)
            self._window.clear()
            self._read_ahead()

    def expects(self, request: ReadRequest) -> bool:
        """Return whether a minibatch is among those to be read next."""
        return any(each.key == request.key for each in self._window)

    def get(self, request: ReadRequest) -> Any:
        """Return a minibatch, and let the process that has read it read another one."""
        if not self._count:
            return self._reader.read(request)
        while self.expects(request):
            self._window.popleft()
        holders = [connection for connection, key in self._held.items() if key == request.key]
        connection = holders[0] if holders else self._ordered(request)
        minibatch, error = self._received(connection)
        if error:
            raise RunError(f"a loader process cannot read a batch: {error}")
        self._read_ahead()
        return minibatch

    def _ordered(self, request: ReadRequest) -> Any:
        """Let a process read what no process was asked for, and return its connection."""
        connection = self._free() or next(iter(self._held))
        if self._held[connection] is not None:
            self._received(connection)
        self._order(connection, request)
        return connection

    def _order(self, connection: Any, request: ReadRequest) -> None:
        self._held[connection] = request.key
        with suppress(OSError):  # that it has ended is noticed where its answer is needed
            connection.send(request)

    def _read_ahead(self) -> None:
        """Give the next requests to free processes."""
        self._window.extend(islice(self._ahead, len(self.processes) - len(self._window)))
        for request in self._window:
            if request.key not in self._held.values() and (connection := self._free()) is not None:
                self._order(connection, request)

    def _free(self) -> Any:
        """Return a process that reads nothing and holds nothing that is expected; None if there is none."""
        expected = {request.key for request in self._window}
        for connection, key in list(self._held.items()):
            if key is not None and key not in expected and connection.poll():
                self._received(connection)
            if self._held[connection] is None:
                return connection
        return None

    def _received(self, connection: Any, otherwise: str = ENDED) -> Any:
        """Return what a process has sent; RunError if it has ended, and another one in its place."""
        self._held[connection] = None
        try:
            return connection.recv()
        except (EOFError, OSError):
            process = self.processes.pop(connection)
            del self._held[connection]
            process.join(1.0)
            if otherwise == ENDED:
                self._start(1)
            raise RunError(f"{otherwise} (exit code {process.exitcode})") from None

    def close(self) -> None:
        """End all processes, whatever they are doing."""
        atexit.unregister(self.close)
        for connection, process in self.processes.items():
            process.kill()
            process.join()
            connection.close()


def _started(reader: Reader) -> tuple[Any, Any]:
    """Start a loader process, and return a connection to it, and the process."""
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
    return here, process


def _serve(connection: Any, modules: UserModules, reader: Reader) -> None:
    """Read minibatches until the rank closes the connection, or ends."""
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


def _read(reader: Reader, request: ReadRequest) -> tuple[Any, str]:
    """Return a minibatch, or what went wrong; transforms may draw from any of the global generators."""
    seed_globally(request.seed)
    try:
        return reader.read(request), ""
    except Exception as error:
        return None, describe_error(error)


def seed_globally(seed: int) -> None:
    """Seed the generators of Python and numpy that a dataset or a sampler may draw from."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002


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
