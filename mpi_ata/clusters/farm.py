"""A farm: one function, many items, workers of unequal speed.

Guided self-scheduling with learned speeds.  A worker that is idle gets half of what it would do of the
remaining items if all workers finished at the same time: long orders first, single items toward the end, and
none where the others are done sooner without it.
"""

import logging
import math
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from operator import attrgetter
from types import FunctionType
from typing import Any, cast

import numpy as np

from mpi_ata.arrays import Array, IntArray
from mpi_ata.clusters.interface import Arrival, Back, Cluster, Lost, named
from mpi_ata.errors import LossError, RunError, UsageError, users_code
from mpi_ata.launch.signals import GraceExpired, current_stop_request
from mpi_ata.packing import pack, unpack
from mpi_ata.problems import Task


class Items:
    """The problem of a farm: each task calls a function, which all ranks have, with one item."""

    x0 = None

    def __init__(self) -> None:
        self.orders = 0  # sent so far: each is a round of its own, in which tasks count from 0
        self.open = False  # whether a call of map() has orders under way
        self.slowness: Array | None = None  # of each worker, as learned from earlier calls of map()
        self.longest = 0.0  # seconds of an item in all of them

    def compute(self, x: Any, task: Task) -> Any:
        """Return what the function returns for one item of an order."""
        if x is None:  # the task with which a worker sets up
            return None
        call, index = found(x["function"]), x["indices"][task.number]
        item = unpack(x["data"][x["begins"][task.number] :])
        with users_code(f"{x['function'].rpartition(':')[0]} failed for item {index}"):
            return call(*item)

    def leaving_seconds(self) -> float:
        """Return how long to wait for workers that are still at an item whose result nobody needs."""
        return max(LEAVING_SECONDS, SLOW * self.longest)

    def result_name(self, x: Any, task: Task) -> str:
        """Return what the result of one item of an order is called in an error."""
        if x is None:
            return "nothing"
        return f"what {x['function'].split(':')[1]}() returned for item {x['indices'][task.number]}"


def order(function: str, items: Sequence[tuple[Any, ...]], indices: Sequence[int]) -> dict[str, Any]:
    """Return what a worker needs to call a function with some of the items."""
    packed = [pack(items[index], f"item {index}") for index in indices]
    begins = np.cumsum([0, *map(len, packed)])[:-1]
    return {
        "function": function,
        "indices": np.array(indices),
        "begins": begins,
        "data": np.concatenate(packed),
    }


def name_of(function: Callable[..., Any]) -> str:
    """Return the name by which all ranks find a function; UsageError where they cannot."""
    with suppress(AttributeError, RunError, ImportError):
        name = f"{function.__module__}:{function.__qualname__}:{_line(function)}"
        if found(name) is function:
            return name
    shown = "a lambda" if "<lambda>" in repr(function) else repr(function)
    raise UsageError(
        f"{shown} cannot be found by its name on other ranks; "
        "define a function with def at the top level of the script, above mpi_ata.cluster()"
    )


def found(name: str) -> Callable[..., Any]:
    """Return the function of this name, as module:function:line."""
    module, path, line = name.split(":")
    function: Any = None
    with suppress(AttributeError):
        function = attrgetter(path)(sys.modules.get(module) or import_module(module or "builtins"))
    if not callable(function):
        raise RunError(
            f"there is no function {path!r} in {module!r} on this rank; define it above mpi_ata.cluster(), "
            "where workers stay"
        )
    if line != _line(function):
        raise RunError(
            f"{path!r} in {module!r} was defined again after mpi_ata.cluster(), where workers stay; "
            "give the new function a name of its own, and define it above"
        )
    return function  # type: ignore[no-any-return]


def _line(function: Callable[..., Any]) -> str:
    """Return the line where a function is defined, if it is one of Python's."""
    return str(function.__code__.co_firstlineno) if isinstance(function, FunctionType) else ""


class ItemSpeeds:
    """Seconds per item of each worker, learned from the items that it has done."""

    def __init__(self, n: int, slowness: Array | None) -> None:
        self.tasks = np.zeros(n, np.int64)
        self.longest = 0.0  # seconds of an item, overhead included
        self._seconds: Array = np.zeros(n)
        self._slowness: Array = np.ones(n) if slowness is None else slowness  # by earlier calls

    def learn(self, worker: int, tasks: int, seconds: float) -> None:
        """Take in how long some items took."""
        self.tasks[worker] += tasks
        self._seconds[worker] += seconds
        self.longest = max(self.longest, seconds / tasks)

    def means(self) -> Array:
        """Return the seconds per item; for a worker that has done none, by its slowness and all others."""
        known = self.tasks > 0
        if not known.any():
            return self._slowness.copy()
        own: Array = np.maximum(self._seconds[known] / self.tasks[known], 1e-9)
        means: Array = self._slowness * float(np.mean(own / self._slowness[known]))
        means[known] = own
        return means

    def slowness(self) -> Array:
        """Return the seconds per item, relative to those of the median worker."""
        means = self.means()
        return means / float(np.median(means))


def shares(ready: Array, means: Array, count: int) -> IntArray:
    """Return how many of `count` items each worker does, so that the last one is done as soon as possible.

    Worker i is ready at ready[i] and takes means[i] seconds per item.
    """
    a = np.maximum((_level(ready, means, count) - ready) / means, 0.0).astype(np.int64)
    ends = ready + (a + 1) * means
    for _ in range(count - int(a.sum())):  # fewer than there are workers
        i = int(ends.argmin())
        a[i] += 1
        ends[i] += means[i]
    return a


def _level(ready: Array, means: Array, count: int) -> float:
    """Return when all would be done if items could be split."""
    order = np.argsort(ready)
    rates = 1.0 / means[order]
    # The first k workers alone would be later, and so would more workers that are not ready by then.
    return float(np.min((count + np.cumsum(ready[order] * rates)) / np.cumsum(rates)))


log = logging.getLogger("mpi_ata")
LONGEST_ORDER_SECONDS = 1.0  # of an order: results come back, and a death costs no more than this
SHORT_ITEM_SECONDS = 1e-3  # shorter items come back together, since a message costs as much
LEAVING_SECONDS = 5.0  # that workers of a farm get to leave; more if items take long
SLOW = 3.0  # times the longest item so far: who takes longer may hang, and idle workers get its items too


class Farming:
    """Gives clusters the method `map`."""

    _problem: Any

    def map(self, function: Callable[..., Any], *items: Iterable[Any], ordered: bool = True) -> Iterator[Any]:
        """Yield function(item) for each item, in order; with several iterables, function(a, b, ...).

        With `ordered` = False, yield pairs of index and result as they come.  Items and results are made of
        arrays, numbers, strings, None, dict, list and tuple.  An item may be computed twice: where its worker
        is lost, or much slower than others.
        """
        if not isinstance(self._problem, Items):
            raise UsageError("map() needs a cluster without a problem: with mpi_ata.cluster() as cluster")
        items_of_calls = list(zip(*items, strict=False))
        farm = Farm(cast(Cluster, self), self._problem, name_of(function), items_of_calls)
        return _in_order(farm.results()) if ordered else farm.results()


class Farm:
    """One call of map(): which items wait, who has which, and how fast each worker is."""

    def __init__(self, cluster: Cluster, problem: Items, function: str, items: list[tuple[Any, ...]]) -> None:
        self._cluster, self._function, self._items, self._problem = cluster, function, items, problem
        self._waiting = deque(range(len(items)))
        self._open = set(self._waiting)  # items without a result
        self._orders: dict[int, list[int]] = {}  # by worker: the items of its order
        self._undelivered: dict[int, list[int]] = {}  # those of them that it has not delivered
        self._copies: Counter[int] = Counter()  # how often an item of a late worker was given to others
        self._began: Array = np.zeros(cluster.n)  # when each worker began its current item
        self._at_once: IntArray = np.ones(cluster.n, np.int64)  # items of its next message
        self._speeds = ItemSpeeds(cluster.n, problem.slowness)

    def results(self) -> Iterator[tuple[int, Any]]:
        """Yield index and result of all items as they come; those who are still busy then are stopped."""
        if self._problem.open:
            way_out = "finish it, or make a list of its results, before the next one"
            raise UsageError(f"a cluster does one map() at a time, and another one is not done; {way_out}")
        self._problem.open = True
        try:
            while self._open:
                self._check_signals()
                self._hand_out()
                yield from self._receive()
        except GraceExpired:  # while it waited for a long item
            self._check_signals()
            raise
        finally:
            self._problem.open = False
            self._cluster.stop(np.array(sorted(self._orders), np.int64))
            self._problem.slowness = self._speeds.slowness()
            self._problem.longest = max(self._problem.longest, self._speeds.longest)

    def _check_signals(self) -> None:
        """Raise RunError if a signal asks the script to end: there is nothing to be saved."""
        if request := current_stop_request():
            done = len(self._items) - len(self._open)
            raise RunError(f"{request.name} ended map() after {done:,} of {len(self._items):,} items")

    def _receive(self) -> Iterator[tuple[int, Any]]:
        """Wait for a message, and yield the new results in it."""
        try:
            found = self._cluster.wait(self._patience())
        except TimeoutError:  # someone is slow
            return
        if not isinstance(found, Arrival):
            self._note(found)
            return
        indices = self._orders[found.worker]
        self._speeds.learn(found.worker, len(found.seconds), math.fsum(found.seconds) + found.overhead)
        self._began[found.worker] = self._cluster.now()
        for result in found.result:
            index = indices[result.number]
            self._undelivered[found.worker].remove(index)
            if index in self._open:
                self._open.remove(index)
                if self._copies[index] and index in self._waiting:
                    self._waiting.remove(index)
                yield index, result.value
        if not self._undelivered[found.worker]:
            del self._orders[found.worker], self._undelivered[found.worker]

    def _note(self, found: Lost | Back) -> None:
        """Log who is lost or back; the items of a lost worker wait again."""
        who = named(found.worker, self._cluster.identities[found.worker])
        log.warning("%s %s: %s", found.kind if isinstance(found, Lost) else "back", who, found.why)
        self._orders.pop(found.worker, None)
        lost = self._undelivered.pop(found.worker, [])
        again = self._open.intersection(lost).difference(self._waiting)
        self._waiting.extendleft(index for index in reversed(lost) if index in again)
        if not self._cluster.available.any():
            raise LossError(f"all {self._cluster.n} workers are lost: {found.why}")

    def _hand_out(self) -> None:
        """Give orders to idle workers, as far as that ends the farm sooner."""
        idle = [i for i in np.flatnonzero(self._cluster.available).tolist() if i not in self._orders]
        if idle and not self._waiting:
            late = self._late()
            self._copies.update(late)
            self._waiting.extend(late)
        if idle and self._waiting:
            means, share = self._planned()
            for i in idle:
                if count := min(-(-share.item(i) // 2), self._most(i, means.item(i)), len(self._waiting)):
                    self._order(i, [self._waiting.popleft() for _ in range(count)], means.item(i))

    def _planned(self) -> tuple[Array, IntArray]:
        """Return the seconds per item of each worker, and how many of the waiting items it should do."""
        now, means = self._cluster.now(), self._speeds.means()
        ready = np.zeros(self._cluster.n)
        for i, left in self._undelivered.items():
            spent = now - self._began.item(i)
            if not self._speeds.tasks[i]:  # it takes at least as long as it has taken so far
                means[i] = max(means.item(i), spent)
            # An item that takes longer than usual is likely to take as much longer again.
            ready[i] = (len(left) - 1) * means.item(i) + abs(means.item(i) - spent)
        able = np.flatnonzero(self._cluster.available)
        share = np.zeros(self._cluster.n, np.int64)
        share[able] = shares(ready[able], means[able], len(self._waiting))
        return means, share

    def _most(self, worker: int, mean: float) -> int:
        """Return how many items an order of this worker may have: few as long as little is known of it."""
        return int(max(min(2 * self._speeds.tasks.item(worker), LONGEST_ORDER_SECONDS / mean), 1))

    def _order(self, worker: int, indices: list[int], mean: float) -> None:
        self._orders[worker], self._undelivered[worker] = indices, list(indices)
        self._began[worker] = self._cluster.now()
        self._problem.orders += 1
        x = order(self._function, self._items, indices)
        together = mean < SHORT_ITEM_SECONDS and self._speeds.tasks.item(worker) > 0
        self._at_once[worker] = len(indices) if together else 1
        self._cluster.start(np.array([worker]), x, self._problem.orders, len(indices), together)

    def _late(self) -> list[int]:
        """Return the items that only late workers have: those that they are at, and those not begun."""
        now, late, held = self._cluster.now(), list[int](), set[int]()
        for i, left in self._undelivered.items():
            if self._late_at(i) <= now:
                late += left
            else:
                held.update(left)
        return [index for index in dict.fromkeys(late) if index in self._open and index not in held]

    def _late_at(self, worker: int) -> float:
        """Return when a worker is silent for so long that others should do its items.

        Each copy has to take longer than the one before, lest all idle workers do the same long item.
        """
        patience = SLOW ** (1 + self._copies[self._undelivered[worker][0]])
        return self._began.item(worker) + patience * self._at_once.item(worker) * self._speeds.longest

    def _patience(self) -> float | None:
        """Return after how many seconds idle workers may be of use; None where there are none to use."""
        now, longest = self._cluster.now(), self._speeds.longest
        if not longest or len(self._orders) == np.count_nonzero(self._cluster.available):
            return None
        if self._waiting:  # for others, who may turn out to be slow
            return longest
        return min((at - now for i in self._undelivered if (at := self._late_at(i)) > now), default=None)


def _in_order(results: Iterator[tuple[int, Any]]) -> Iterator[Any]:
    """Yield results by their index, each as soon as those before it are in."""
    early, next_index = dict[int, Any](), 0
    for index, result in results:
        early[index] = result
        while next_index in early:
            yield early.pop(next_index)
            next_index += 1
