"""The run of a farm: what its calls of map() have found, saved in a run file as other runs are."""

import hashlib
import logging
import time
from collections import UserDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np

from mpi_ata.allocators.interface import NonAdaptive
from mpi_ata.arrays import Array, BoolArray, IntArray, State, entry
from mpi_ata.clusters import Back, Cluster, Lost
from mpi_ata.clusters.farm import Items, Journal, name_of
from mpi_ata.clusters.interface import ClusterAbilities
from mpi_ata.driver.drive import advise_on_exchange
from mpi_ata.driver.execute import start_billing
from mpi_ata.driver.observers import Observer
from mpi_ata.driver.plan import RunStart
from mpi_ata.driver.recorder import RunRecorder
from mpi_ata.driver.restore import begin
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import CONTINUE, BadResultError, ItemError, RunError, UsageError
from mpi_ata.launch.exit_report import exit_code_of
from mpi_ata.launch.signals import StopRequest
from mpi_ata.methods import Round
from mpi_ata.packing import from_state, pack, to_state, unpack, unpack_all

log = logging.getLogger("mpi_ata")

ROUND_SECONDS = 1.0  # of a call of map(), after which a round ends and may be saved
PLAIN = (bool, int, float, str, bytes)  # values that look the same in each process
DONE = "the end of the script"  # what finishes a farm


class SavedValues(UserDict[str, Any]):
    """Values that are saved with a farm; each is copied when it is set, and when it is read."""

    def __init__(self, before_change: Callable[[], None]) -> None:
        super().__init__()
        self._before_change = before_change

    def __getitem__(self, key: str) -> Any:
        return deepcopy(self.data[key])

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(key, str):
            raise UsageError(f"state[{key!r}]: a key must be a string")
        copy = unpack(pack(value, f"state[{key!r}]"))
        self._before_change()
        self.data[key] = copy

    def __delitem__(self, key: str) -> None:
        self._before_change()
        del self.data[key]


class Slowness(NonAdaptive):
    """The relative speeds of workers: what a farm learns, in the place of an allocator."""

    budget = 1

    def __init__(self, items: Items, n: int) -> None:
        self._items, self.n = items, n

    def allocate(self, available: BoolArray) -> IntArray:
        """Return one task for each available worker; a farm asks its own rule."""
        return available.astype(np.int64)

    def state(self) -> State:
        """Return the seconds per item of each worker, relative to those of the median worker."""
        slowness = self._items.slowness
        return {"slowness": np.ones(self.n) if slowness is None else slowness}

    def restore(self, state: State) -> None:
        """Resume from an earlier state."""
        self._items.slowness = entry(state, "slowness", np.ones(self.n))

    def inherit(self, rounds: int, known: State) -> None:
        """Start from the mean times of earlier runs; workers that these do not know count as median ones.

        What was spent on items that others have done sooner counts too.
        """
        tasks, spent = known["tasks"], known["seconds"] + known["unfinished"]
        if tasks.any():
            means: Array = np.maximum(spent / np.maximum(tasks, 1), 1e-9)
            self._items.slowness = np.where(spent > 0, means / np.median(means[spent > 0]), 1.0)


class FarmRun(Journal):
    """Counts rounds, saves results, and returns those of an interrupted run.

    A round is a call of map(), or a second of a longer one.  Calls are recognised by their order since the
    latest change of `values`, and checked by function and items.
    """

    any_x = True
    x: Any = None  # the values, as they were saved last
    asked = 0  # items so far, of all calls of map()
    _calls: list[list[Any]]  # function, number of items, and a digest of these

    def __init__(
        self, start: RunStart, items: Items, cluster: Cluster, observers: Sequence[Observer] = ()
    ) -> None:
        self.k, self.values = 0, SavedValues(self._forget_calls)
        self.allocator = Slowness(items, cluster.n)
        self._start, self._items, self._cluster, self._observers = start, items, cluster, observers
        self._simulated = ClusterAbilities.of(cluster).simulated
        self._round_seconds = min(ROUND_SECONDS, start.job.run.checkpoint_seconds or ROUND_SECONDS)
        self._forget_calls()
        self._trace = Trace()
        start_billing(self._trace, cluster)
        notes = begin(start, self, cluster, self._trace)
        self._trace.end_setup()
        self._recorder: RunRecorder | None = None
        if start.file is not None:
            self._recorder = RunRecorder(start, start.file, self, cluster, self._trace)
            self._recorder.begin(notes)
        self._begin_round()
        for observer in observers:
            observer.on_start(self, cluster, self._trace)  # type: ignore[arg-type]  # it makes no steps

    @property
    def saves(self) -> bool:  # type: ignore[override]
        """Return whether what was noted can be resumed."""
        return self._recorder is not None

    def state(self) -> State:
        """Return the values, the calls of map() and the results so far."""
        self.x = dict(self.values)
        return {
            "k": np.array(self.k),
            **to_state(self.x, "x"),
            **to_state(self._calls, "calls"),
            "results": np.frombuffer(bytes(self._results), np.uint8),
        }

    def restore(self, state: State) -> None:
        """Resume from an earlier state: calls that are made again find their results."""
        self.values.update(from_state(state, "x"))
        self.k, self._calls = int(entry(state, "k", self.k)), from_state(state, "calls")
        self._results += state["results"].tobytes()
        found = unpack_all(np.array(state["results"]))
        for (call, item), value in zip(found[::2], found[1::2], strict=True):
            self._known.setdefault(call, {})[item] = value

    def _forget_calls(self) -> None:
        """Count calls anew: what came before is no longer needed."""
        if self._items.open:
            raise UsageError("state can be changed between calls of map(), not while one is under way")
        self._calls = []
        self._number = -1  # of the present call
        self._known: dict[int, dict[int, Any]] = {}  # by call and item: results that were resumed
        self._results = bytearray()  # packed, end to end: call and index, result, ...
        self._warned = False  # that a result cannot be saved

    def begin(
        self, function: Callable[..., Any], items: list[tuple[Any, ...]], seed: int | None
    ) -> dict[int, Any]:
        """Note that a call of map() begins, and return the results of it that are known, by index."""
        if self._recorder is None:
            return {}
        self._begin_round()
        self._number += 1
        call = [
            name_of(function),
            len(items),
            _digest([seed, items]),
            _digest(list(code_of(function, set()))),
        ]
        if self._number == len(self._calls):
            self._calls.append(call)
        self._check_same(self._calls[self._number], call)
        self._calls[self._number] = call
        known = self._known.pop(self._number, {})
        self.asked = self._trace.used + len(items) - len(known)
        return known

    def _check_same(self, then: list[Any], now: list[Any]) -> None:
        """Reject a call that is not the one whose results are in the file."""
        assert self._start.file is not None
        where = f"{self._start.file.path}: call {self._number} of map()"
        if then[:3] != now[:3]:
            whats = [f"{name} with {count:,} items" for name, count, *_ in (then, now)]
            if whats[0] == whats[1]:
                whats = [whats[0], "the same with other items or another seed"]
            raise RunError(  # no UsageError, a ValueError, of which SciPy makes a text of its own
                f"{where} was {whats[0]}, and is now {whats[1]}: a resumed script has to make the same "
                "calls, so seed its random numbers, or choose another out"
            )
        if then[3:] != now[3:] and not self._start.output.accept_changes:
            raise RunError(
                f"{where} was {now[0]}, whose code has changed since then: choose another out, or keep the "
                "results so far with accept_changes=True"
            )

    def take(self, worker: int, index: int, result: Any) -> None:
        """Note the result of an item; errors are not saved, so that a resumed run tries again."""
        if self._recorder is None:
            return
        self._used[worker] += 1
        if isinstance(result, ItemError):
            return
        try:
            packed = pack(result, f"the result of item {index}")
            self._results += np.concatenate([pack([self._number, index]), packed]).tobytes()
        except BadResultError as error:
            if not self._warned:
                log.warning("%s; such results are not saved, and computed again by a resumed run", error)
            self._warned = True

    def happened(self, found: Lost | Back) -> None:
        """Note who is lost or back."""
        self._happened.append(found)

    def tick(self) -> None:
        """End a round of a long call, and save if it is time; a simulation has nothing to fear."""
        if not self._simulated and time.monotonic() - self._since >= self._round_seconds:
            self.end()

    def _begin_round(self) -> None:
        ledger = self._cluster.ledger
        self._began, self._since = self._cluster.now(), time.monotonic()
        self._mark, self._tasks = ledger.mark(), ledger.stats.state()["tasks"].copy()
        self._used = np.zeros(self._cluster.n, np.int64)
        self._happened: list[Lost | Back] = []

    def end(self) -> None:
        """End a round: take in what happened since it began."""
        if self._recorder is None:
            return
        ledger, used = self._cluster.ledger, self._used
        late = ledger.changes(self._mark)
        wasted = ledger.stats.state()["tasks"] - self._tasks - used + late.stopped
        if not (used.any() or wasted.any() or late.lost.any() or self._happened):  # all was known
            return
        self.k += 1
        losses = tuple(each for each in self._happened if isinstance(each, Lost))
        returns = tuple(each for each in self._happened if isinstance(each, Back))
        spent = late.stopped_time, self._cluster.now() - self._began
        round = Round(self.k, used, used, wasted, late.lost, *spent, losses=losses, returns=returns)
        self._trace.add(round, ledger)
        self._trace.record()
        self._begin_round()
        for observer in self._observers:
            observer.on_round(round, self._trace)
        self._recorder.note(round)
        self._recorder.save_if_due(round)

    def close(self, stop_request: StopRequest, error: BaseException | None) -> None:
        """Save for the last time, after the script, a signal or an error has ended the farm."""
        if self._recorder is not None:
            self._save(self._recorder, stop_request, error)
        advise_on_exchange(self._cluster.ledger, "let each item do more, and the script less between results")

    def _save(self, recorder: RunRecorder, stop_request: StopRequest, error: BaseException | None) -> None:
        stop_request.exit_code = CONTINUE  # should a signal come in these saves
        try:
            if stop_request:
                self._trace.end()
                recorder.interrupt(stop_request.word)
            elif error is not None:
                recorder.fail(
                    error if isinstance(error, Exception) else RuntimeError(repr(error)), whole=True
                )
                log.warning("%s", recorder.remains())
            else:
                recorder.finish(DONE)
                self._cluster.close()
                self._trace.settle(self._cluster.ledger, self._mark)
                self._trace.end()
                recorder.save_summary()
        finally:
            recorder.close()


def code_of(function: Any, seen: set[int]) -> Iterator[Any]:
    """Yield the code of a function, of what it wraps, and of functions of its own file that it calls."""
    if id(function) in seen:
        return
    seen.add(id(function))
    parts: list[Any] = []
    if isinstance(function, partial):
        parts = [function.func]
    elif isinstance(function, MethodType):
        parts = [function.__func__]
    elif isinstance(function, FunctionType):
        code, names = function.__code__, function.__globals__
        yield from _instructions(code)
        yield [repr(value) for value in function.__defaults__ or () if isinstance(value, PLAIN)]
        called = [names.get(name) for name in code.co_names]
        parts = [each for each in called if getattr(each, "__module__", "") == function.__module__]
        parts += [cell.cell_contents for cell in function.__closure__ or ()]
    elif not isinstance(function, type):  # an object that can be called
        parts = [type(function).__call__, *getattr(function, "__dict__", {}).values()]
    for part in parts:
        if isinstance(part, FunctionType | MethodType | partial):
            yield from code_of(part, seen)


def _instructions(code: CodeType) -> Iterator[Any]:
    """Yield what a function does, wherever it stands in its file."""
    yield [np.frombuffer(code.co_code, np.uint8), list(code.co_names)]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)
        else:
            yield sorted(map(repr, constant)) if isinstance(constant, frozenset) else repr(constant)


def _digest(value: Any) -> str:
    """Return a digest of what a call is about; empty where that is not made of arrays and numbers."""
    try:
        return hashlib.sha256(pack(value).data).hexdigest()
    except BadResultError:
        return ""


@contextmanager
def recorded_farm(
    start: RunStart, items: Items, cluster: Cluster, stop_request: StopRequest, observers: Sequence[Observer]
) -> Iterator[None]:
    """Record what a farm does meanwhile, and how it ends."""
    items.journal = run = FarmRun(start, items, cluster, observers)
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        if not (isinstance(raised, SystemExit) and exit_code_of(raised) == 0):
            error = raised
        raise
    finally:
        run.close(stop_request, error)
