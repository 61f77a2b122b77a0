"""A farm: one function, many items, workers of unequal speed.

Guided self-scheduling with learned speeds.  A worker that is idle gets half of what it would do of the
remaining items if all workers finished at the same time: long orders first, single items toward the end, and
none where the others are done sooner without it.
"""

import logging
import math
import reprlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any, cast

import numpy as np

from mpi_ata.arrays import Array, IntArray
from mpi_ata.clusters.interface import Arrival, Back, Cluster, Lost, named
from mpi_ata.clusters.pickling import can_send_code, dumps, loads
from mpi_ata.errors import (
    CONTINUE,
    ItemError,
    LossError,
    RunError,
    StopNow,
    UsageError,
    describe_error,
    in_users_code,
    is_users_own,
)
from mpi_ata.launch.signals import current_stop_request
from mpi_ata.packing import EMPTY, Packed
from mpi_ata.problems import AnyProblem, Task
from mpi_ata.randomness import Purpose, Streams


class Journal:
    """What is noted of a farm while it runs; this one notes nothing."""

    saves = False  # whether what was noted can be resumed

    def begin(
        self, function: Callable[..., Any], items: list[tuple[Any, ...]], seed: int | None
    ) -> dict[int, Any]:
        """Note that a call of map() begins, and return the results of it that are known, by index."""
        return {}

    def take(self, worker: int, index: int, result: Any) -> None:
        """Note the result of an item."""

    def happened(self, found: Lost | Back) -> None:
        """Note who is lost or back."""

    def tick(self) -> None:
        """Save, if it is time; called while items are under way."""

    def end(self) -> None:
        """Note that the call has ended, for whatever reason."""


class Items:
    """The problem of a farm: each task calls a function with one item.

    A function is sent to each worker once, with a number by which later orders name it.
    """

    x0 = None

    def __init__(self) -> None:
        self.orders = 0  # sent so far: each is a round of its own, in which tasks count from 0
        self.journal = Journal()
        self.open = False  # whether a call of map() has orders under way
        self.slowness: Array | None = None  # of each worker, as learned from earlier calls of map()
        self.longest = 0.0  # seconds of an item in all of them
        self._numbers: dict[bytes, int] = {}  # of the latest functions, on the manager
        self._sent: dict[int, deque[int]] = {}  # by worker: those that it should have
        self._functions: dict[int, Callable[..., Any]] = {}  # those that this worker has

    def compute(self, x: Any, task: Task) -> Any:
        """Return an answer for one item of an order: a value, an error, or what is missing here."""
        if x is None:  # the task with which a worker sets up
            return None
        try:
            function = self._function(x)
        except Exception as error:  # where it was not sent, this worker was thought to have it
            why = describe_error(error) if x["function"].size else ""
            return {"missing": why, "number": x["number"]}
        try:
            item = loads(x["items"][x["begins"][task.number] :])
            if (seed := x["seed"]) is not None:
                item = *item, Streams(seed, Purpose.ITEMS).at(x["indices"].item(task.number))
            result = function(*item)
            return {"value": as_bytes(dumps(result, "its result"))}
        except RunError as error:
            return {"error": f": {error}", "raised": EMPTY}
        except BaseException as error:
            if not is_users_own(error):
                raise
            return {"error": str(in_users_code("", error)), "raised": _raised(error)}

    def _function(self, x: Any) -> Callable[..., Any]:
        """Return the function of an order, which came with it or with an earlier one."""
        if (number := x["number"]) not in self._functions:
            if not x["function"].size:
                raise LookupError
            function = loads(x["function"])
            if line_of(function) != x["line"]:
                raise LookupError("it was defined again below, where workers do not get")
            self._functions[number] = function
            _keep_latest(self._functions)
        return self._functions[number]

    def number_of(self, function: bytes) -> int:
        """Return the number of a function, which differs from those of all others."""
        number = self._numbers.setdefault(function, max(self._numbers.values(), default=0) + 1)
        _keep_latest(self._numbers)
        return number

    def send_once(self, worker: int, number: int) -> bool:
        """Return whether a worker has to be sent a function, and note that it was."""
        sent = self._sent.setdefault(worker, deque(maxlen=KEPT))
        if number in sent:
            return False
        sent.append(number)
        return True

    def forget_sent(self, worker: int) -> None:
        """Note that a worker does not have what it was thought to have."""
        self._sent.pop(worker, None)

    def leaving_seconds(self) -> float:
        """Return how long to wait for workers that are still at an item whose result nobody needs."""
        return max(LEAVING_SECONDS, SLOW * self.longest)


def as_bytes(data: bytes) -> Packed:
    """Return bytes as an array, which packing can take as it is."""
    return np.frombuffer(data, np.uint8)


def line_of(function: Callable[..., Any]) -> str:
    """Return the line where a function is defined, if it is one of Python's."""
    return str(function.__code__.co_firstlineno) if isinstance(function, FunctionType) else ""


def name_of(function: Callable[..., Any]) -> str:
    """Return what a function is called in messages."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__qualname__", type(function).__name__)


def _raised(error: BaseException) -> Packed:
    """Return an exception as bytes, if it can be sent."""
    try:
        return as_bytes(dumps(error, "the exception"))
    except RunError:
        return EMPTY


def _keep_latest(functions: dict[Any, Any]) -> None:
    while len(functions) > KEPT:
        del functions[next(iter(functions))]


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
KEPT = 4  # functions that a worker keeps: the latest ones
LEAVING_SECONDS = 5.0  # that workers of a farm get to leave; more if items take long
FEED_SECONDS = 0.01  # between two looks for further items, while a worker is idle
SLOW = 3.0  # times the longest item so far: who takes longer may hang, and idle workers get its items too


class Farming:
    """Gives clusters the methods `map` and `starmap`."""

    _problem: Any

    @property
    def problem(self) -> AnyProblem:
        """What workers compute."""
        found: AnyProblem = self._problem
        return found

    def map(
        self,
        function: Callable[..., Any],
        *items: Iterable[Any],
        ordered: bool = True,
        on_error: str = "raise",
        max_losses: int = 2,
        seed: int | None = None,
    ) -> Iterator[Any]:
        """Yield function(item) for each item, in order; with several iterables, function(a, b, ...).

        With `ordered` = False, yield pairs of index and result as they come.  Function, items and results are
        anything that pickle can send; the function is sent to each worker once.  An item may be computed
        twice: where its worker is lost, or much slower than others.  One that raises, or that `max_losses`
        workers did not survive, raises an ItemError, or with `on_error` = "return" has it as its result.
        With a `seed`, the function gets a numpy Generator of the item's own as its last argument.
        """
        options = {"on_error": on_error, "max_losses": max_losses, "seed": seed}
        try:
            zipped = zip(*items, strict=False)
        except TypeError as error:
            raise UsageError(f"map() needs a list of items: {error}") from None
        return self.starmap(function, zipped, ordered, **options)

    def starmap(
        self,
        function: Callable[..., Any],
        items: Iterable[Iterable[Any]],
        ordered: bool = True,
        **options: Any,
    ) -> Iterator[Any]:
        """Yield function(*item) for each item, as map() does, with its options."""
        if not isinstance(self._problem, Items):
            raise UsageError("map() needs a cluster without a problem: with mpi_ata.cluster() as cluster")
        if not callable(function):
            raise UsageError(f"map() calls a function, but {reprlib.repr(function)} cannot be called")
        try:
            given = list(map(tuple, items))
        except TypeError as error:
            raise UsageError(f"each item of starmap() has to be a list of arguments: {error}") from None
        farm = Farm(cast(Cluster, self), self._problem, function, given, MapOptions(**options))
        return _in_order(farm.results()) if ordered else farm.results()


@dataclass(frozen=True)
class MapOptions:
    """What one call of map() asks for."""

    on_error: str = "raise"  # or "return"
    max_losses: int = 2  # workers that an item may cost
    seed: int | None = None  # of the random numbers that items get

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "return"):
            raise UsageError(f"on_error={self.on_error!r} must be 'raise' or 'return'")
        if self.max_losses < 1:
            raise UsageError(f"max_losses={self.max_losses} must be at least 1")
        if self.seed is not None and not (isinstance(self.seed, int) and 0 <= self.seed < 2**64):
            raise UsageError(f"seed={self.seed!r} must be a whole number from 0 to 2**64 - 1")


class Farm:
    """One call of map(): which items wait, who has which, and how fast each worker is."""

    def __init__(
        self,
        cluster: Cluster,
        problem: Items,
        function: Callable[..., Any],
        items: list[tuple[Any, ...]],
        options: MapOptions,
        feed: Callable[[], None] | None = None,
    ) -> None:
        self._feed = feed  # called between messages: it may add items
        self._cluster, self._function, self._items, self._problem = cluster, function, items, problem
        self._options = options
        self._name, self._line = name_of(function), line_of(function)
        self._set_code(by_value=False)
        self._waiting = deque(range(len(items)))
        self._open = set(self._waiting)  # items without a result
        self._orders: dict[int, list[int]] = {}  # by worker: the items of its order
        self._undelivered: dict[int, list[int]] = {}  # those of them that it has not delivered
        self._copies: Counter[int] = Counter()  # how often an item of a late worker was given to others
        self._losses: Counter[int] = Counter()  # workers that died while they may have been at an item
        self._began: Array = np.zeros(cluster.n)  # when each worker began its current item
        self._at_once: IntArray = np.ones(cluster.n, np.int64)  # items of its next message
        self._speeds = ItemSpeeds(cluster.n, problem.slowness)

    def _set_code(self, by_value: bool) -> None:
        """Set the bytes of the function that workers are sent."""
        self._by_value = by_value
        self._code = dumps(self._function, self._name, by_value)
        self._number = self._problem.number_of(self._code)

    def results(self) -> Iterator[tuple[int, Any]]:
        """Yield index and result of all items as they come; those who are still busy then are stopped."""
        if self._problem.open:
            way_out = "finish it, or make a list of its results, before the next one"
            raise UsageError(f"a cluster does one map() at a time, and another one is not done; {way_out}")
        journal = self._problem.journal
        known = journal.begin(self._function, self._items, self._options.seed)
        self._open.difference_update(known)
        self._waiting = deque(sorted(self._open))
        self._problem.open = True
        try:
            yield from known.items()
            while self._fed():
                if not self._stopping():
                    self._hand_out()
                yield from self._receive()
                journal.tick()
        except StopNow:  # while it waited for a long item
            self._stopping(now=True)
            raise
        finally:
            self._problem.open = False
            self._cluster.stop(np.array(sorted(self._orders), np.int64))
            self._problem.slowness = self._speeds.slowness()
            self._problem.longest = max(self._problem.longest, self._speeds.longest)
            journal.end()

    def _fed(self) -> bool:
        """Return whether there are items without a result, after more were asked for."""
        if self._feed is not None:
            self._feed()
        return self.is_open

    @property
    def is_open(self) -> bool:
        """Return whether there are items without a result."""
        return bool(self._open)

    def add(self, item: tuple[Any, ...]) -> int:
        """Add an item, and return its index."""
        index = len(self._items)
        self._items.append(item)
        self._open.add(index)
        self._waiting.append(index)
        return index

    def forget(self, index: int) -> None:
        """Keep an item that is done no longer."""
        self._items[index] = ()

    def takes_more(self) -> bool:
        """Return whether few items wait, so that workers may soon be idle."""
        return len(self._waiting) < 2 * self._cluster.n

    def _stopping(self, now: bool = False) -> bool:
        """Return whether a signal asks the script to end, which it does here.

        Where results are saved, that is when the items under way are done, unless it is to end `now`.
        """
        if not (request := current_stop_request()):
            return False
        saves, done = self._problem.journal.saves, len(self._items) - len(self._open)
        if saves and self._orders and not now:
            return True
        text = f"{request.word} ended map() after {done:,} of {len(self._items):,} items"
        if saves:  # no `except Exception` of a sampler may stop this
            log.warning("%s", text)
            raise SystemExit(CONTINUE)
        raise RunError(text)

    def _receive(self) -> Iterator[tuple[int, Any]]:
        """Wait for a message, and yield the new results in it."""
        try:
            found = self._cluster.wait(self._patience())
        except TimeoutError:  # someone is slow
            return
        if not isinstance(found, Arrival):
            yield from self._note(found)
            return
        indices, answers = self._orders[found.worker], found.result
        missing = [answer.value for answer in answers if "missing" in answer.value]
        if missing:
            self._send_again(found.worker, **missing[0])
        else:
            self._speeds.learn(found.worker, len(found.seconds), math.fsum(found.seconds) + found.overhead)
        self._began[found.worker] = self._cluster.now()
        for answer in answers:
            index = indices[answer.number]
            self._undelivered[found.worker].remove(index)
            if "missing" in answer.value:
                self._wait_again([index])
            elif index in self._open:
                self._close(index)
                result = self._outcome(found.worker, index, **answer.value)
                self._problem.journal.take(found.worker, index, result)
                yield index, result
        if not self._undelivered[found.worker]:
            del self._orders[found.worker], self._undelivered[found.worker]

    def _send_again(self, worker: int, missing: str, number: int) -> None:
        """Send the function again to a worker that lacks it: as it is, if it cannot be found by its name."""
        self._problem.forget_sent(worker)
        if not missing or number != self._number:
            return
        if self._by_value or not can_send_code():
            way_out = "define it above cluster() or Pool(), where workers stay, or install cloudpickle"
            raise RunError(f"{self._who(worker)} cannot load {self._name}: {missing}; {way_out}")
        self._set_code(by_value=True)

    def _close(self, index: int) -> None:
        """Note that an item needs no further result."""
        self._open.remove(index)
        if self._copies[index] and index in self._waiting:
            self._waiting.remove(index)

    def _wait_again(self, indices: list[int]) -> None:
        """Let items without a result wait again, before all others."""
        again = self._open.intersection(indices).difference(self._waiting)
        self._waiting.extendleft(index for index in reversed(indices) if index in again)

    def _outcome(
        self, worker: int, index: int, value: Packed = EMPTY, error: str = "", raised: Packed = EMPTY
    ) -> Any:
        """Return the result of an item, or its error."""
        if not error:
            try:
                return loads(value)
            except Exception as reason:
                error = f": its result cannot be loaded by the manager: {describe_error(reason)}"
        failure = ItemError(f"{self._name} failed for item {index} on {self._who(worker)}{error}", index)
        with suppress(Exception):  # of a class, say, that the manager does not have
            failure.__cause__ = loads(raised)
        return self._failed(failure)

    def _failed(self, error: ItemError) -> ItemError:
        """Raise the error of an item, or return it as the item's result."""
        if self._options.on_error == "raise":
            raise error
        return error

    def _who(self, worker: int) -> str:
        return named(worker, self._cluster.identities[worker])

    def _note(self, found: Lost | Back) -> Iterator[tuple[int, ItemError]]:
        """Log who is lost or back; items of a lost worker wait again, unless they cost too many."""
        kind = found.kind if isinstance(found, Lost) else "back"
        log.warning("%s %s: %s", kind, self._who(found.worker), found.why)
        self._problem.journal.happened(found)
        self._orders.pop(found.worker, None)
        held = self._undelivered.pop(found.worker, [])
        if kind == "lost":  # which of the items that come back together it was at is not known
            self._losses.update(held if self._at_once[found.worker] > 1 else held[:1])
        if not self._cluster.available.any():
            raise LossError(f"all {self._cluster.n} workers are lost: {found.why}{self._suspicion()}")
        deadly = [index for index in held if self._losses[index] >= self._options.max_losses]
        self._wait_again([index for index in held if index not in deadly])
        for index in self._open.intersection(deadly):
            self._close(index)
            losses = self._losses[index]
            costs = f"{self._named(index)} has cost {losses} worker{'s' * (losses > 1)}"
            yield index, self._failed(ItemError(f"{costs}, the last one {self._who(found.worker)}", index))

    def _named(self, index: int) -> str:
        """Return an item's index and value, shortened."""
        item = self._items[index]
        return f"item {index}, {reprlib.repr(item[0] if len(item) == 1 else item)},"

    def _suspicion(self) -> str:
        """Return which item has cost several workers, if one has."""
        ((index, losses),) = self._losses.most_common(1) or [(0, 0)]
        return f"; {self._named(index)} has cost {losses} of them" if losses > 1 else ""

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
                    self._order(i, self._take(count), means.item(i))

    def _take(self, count: int) -> list[int]:
        """Return the next waiting items; one that may have cost a worker comes alone, to make sure."""
        taken = [self._waiting.popleft()]
        while len(taken) < count and not (self._losses[taken[-1]] or self._losses[self._waiting[0]]):
            taken.append(self._waiting.popleft())
        return taken

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
        x = self._described(worker, indices)
        self._orders[worker], self._undelivered[worker] = indices, list(indices)
        self._began[worker] = self._cluster.now()
        self._problem.orders += 1
        together = mean < SHORT_ITEM_SECONDS and self._speeds.tasks.item(worker) > 0
        self._at_once[worker] = len(indices) if together else 1
        self._cluster.start(np.array([worker]), x, self._problem.orders, len(indices), together)

    def _described(self, worker: int, indices: list[int]) -> dict[str, Any]:
        """Return what a worker needs to call the function with some of the items."""
        items = [dumps(self._items[index], f"item {index}") for index in indices]
        code = self._code if self._problem.send_once(worker, self._number) else b""
        return {
            "number": self._number,
            "line": self._line,
            "seed": self._options.seed,
            "indices": np.array(indices),
            "function": as_bytes(code),
            "begins": np.cumsum([0, *map(len, items)])[:-1],
            "items": as_bytes(b"".join(items)),
        }

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
        if len(self._orders) == np.count_nonzero(self._cluster.available):
            return None
        if self._feed is not None:  # more items may come at any time
            return FEED_SECONDS
        if not longest:
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
