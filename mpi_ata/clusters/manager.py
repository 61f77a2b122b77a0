"""The manager's side of the MPI cluster; worker.py is its mirror."""

import atexit
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat

import numpy as np
from mpi4py import MPI

from mpi_ata.arrays import Array, IntArray, State, entry
from mpi_ata.clusters.buffers import NOWHERE
from mpi_ata.clusters.channel import ARRIVAL, EMPTY, END, FAILED, ORDER, STOP, STOPPED, Channel, Message
from mpi_ata.clusters.doorbell import Doorbell, host_name
from mpi_ata.clusters.handshake import check_same, handshake, places, shared_buffers
from mpi_ata.clusters.interface import Arrival, set_up
from mpi_ata.clusters.stats import TaskTimeStats
from mpi_ata.errors import RunError
from mpi_ata.launch import slurm_tasks
from mpi_ata.launch.signals import GraceExpired
from mpi_ata.problems import Problem

LOOK_UP = 0.5  # seconds after which a manager that waits sees whether it was asked to end
GRACE = 2.0  # seconds that workers get to leave when a run has failed


@dataclass(slots=True)
class _Order:
    """What a worker was told to do, or will be as soon as it has stopped what it did before."""

    number: int
    x: Array
    round: int
    count: int
    together: bool
    left: int
    sent: float = math.inf
    latest: float = math.inf  # when it was sent, or its latest arrival came
    result: Array | None = None  # where it will be, if in shared memory


class MPICluster:
    """Real workers on the ranks 1 to n of a communicator; its rank 0 must make this."""

    def __init__(
        self,
        comm: MPI.Comm,
        problem: Problem,
        digest: bytes = b"",
        times: str = "",
        overdue: Callable[[], bool] = lambda: False,
    ) -> None:
        n = comm.Get_size() - 1
        self.n = n
        self.speeds = TaskTimeStats(n)
        self.overdue = overdue  # whether to give up waiting
        self.worker_time = np.zeros(n)
        self.undelivered = np.zeros(n, np.int64)
        self.undelivered_time = np.zeros(n)
        self._comm, self._problem, self._template = comm, problem, problem.x0
        self._meet(digest)
        self.sharing: set[int] = set()  # workers that have opened the shared memory
        self.places = places(self._ranks, times)
        self._ring: list[Callable[[], None]] = [
            self._bell.ringer(rank.host, rank.bell, rank.port, number)
            for number, rank in enumerate(self._ranks)
            if number > 0
        ]
        self._channel = Channel(comm, MPI.ANY_SOURCE, self._template)
        self._numbers = 0  # of orders
        self._orders: dict[int, _Order] = {}  # what is running, by worker
        self._withdrawn: dict[int, _Order] = {}  # what workers have not yet answered to have stopped
        self._staying = set(range(n))  # workers that were not let go
        self.ended_for_good = False
        try:
            self._prepare()
        except BaseException:
            self.abort()
            raise

    def _meet(self, digest: bytes) -> None:
        """Get to know the ranks; what all have opened by then is left in no file system."""
        try:
            self._bell = Doorbell()
            self._shared = shared_buffers(host_name(), self._bell.name, self._template, owner=True)
            try:
                self._ranks = handshake(self._comm, self._bell, digest)
                self._comm.Barrier()
            finally:
                self._bell.unlink_flags()
                if self._shared is not None:
                    self._shared.unlink()
        except BaseException:  # the others wait for this rank, and would for ever
            atexit.register(end_all_ranks, self._comm)
            raise

    def _prepare(self) -> None:
        """Wait until all workers are set up; before the clock starts."""
        check_same(self._ranks)
        for ring in self._ring:
            ring()
        set_up(self._problem, None, self.n)
        ready = [self._checked(self._next_message()) for _ in range(self.n)]
        self._unreachable = sorted(message.sender - 1 for message in ready if not message.tasks)
        if self._shared is not None:
            self.sharing = {message.sender - 1 for message in ready if message.together}

    def notes(self, sleeping: bool) -> list[str]:
        """What the user should know of these ranks; whether their tasks mostly sleep matters there."""
        notes = []
        if (given := slurm_tasks()) not in (None, self.n + 1):
            notes.append(f"Slurm has given {given} tasks to this job, but {self.n + 1} ranks were started")
        if self._unreachable:
            notes.append(
                f"the bell of workers {self._unreachable} cannot be rung: they look for orders every 10 ms"
            )
        here = sum(rank.host == self._ranks[0].host for rank in self._ranks)
        if here > (cores := os.cpu_count() or here) and not sleeping:
            notes.append(f"{here} ranks share {cores} cores here: times of tasks include waiting for a core")
        if self._shared is not None and self._shared.room() < 2 * (self.n + 2) * self._template.nbytes:
            notes.append(
                "shared memory is too small for x and all results: what does not fit goes by messages"
            )
        return notes

    def now(self) -> float:
        """The time on the manager's monotonic clock."""
        return time.perf_counter()

    def start(
        self, workers: IntArray, x: Array, round: int, counts: IntArray | int = 1, together: bool = False
    ) -> None:
        """Order tasks at the point x: counts[j] of them from workers[j]."""
        if x.shape != self._template.shape or x.dtype != self._template.dtype:
            raise ValueError(
                f"x is {x.dtype} of shape {x.shape}, but x0 {self._template.dtype} {self._template.shape}"
            )
        x.flags.writeable = False  # for who hands it over too: later orders may use a copy made now
        each = repeat(counts) if isinstance(counts, int) else counts.tolist()
        for worker, count in zip(workers.tolist(), each, strict=False):
            if worker in self._orders:
                raise RuntimeError("a worker holds one order at a time; stop it first")
            self._numbers += 1
            self._orders[worker] = order = _Order(self._numbers, x, round, count, together, count)
            if worker not in self._withdrawn:
                self._send(worker, order)

    def _send(self, worker: int, order: _Order) -> None:
        """Send an order; its point and its result go through shared memory where that can be, or along."""
        slot = result_slot = NOWHERE
        if worker in self.sharing and self._shared is not None:
            order.x = self._shared.put(order.x)
            order.result = self._shared.free() if order.together or order.count == 1 else None
            slot, result_slot = self._shared.number_of(order.x), self._shared.number_of(order.result)
        payload = order.x if slot == NOWHERE else EMPTY
        self._channel.send(
            worker + 1,
            ORDER,
            order.number,
            order.round,
            order.count,
            order.together,
            (),
            payload,
            slot,
            result_slot,
        )
        self._ring[worker]()
        order.sent = order.latest = time.perf_counter()

    def wait(self, timeout: float | None = None) -> Arrival:
        """The next arrival."""
        until = math.inf if timeout is None else self.now() + timeout
        while self._orders:
            message = self._next_message(until)
            if message is None:
                raise TimeoutError(f"nothing arrived within {timeout} seconds")
            if (arrival := self._account(self._checked(message))) is not None:
                return arrival
        raise RuntimeError("nothing is running, so there is nothing to wait for")

    def _next_message(self, until: float = math.inf) -> Message | None:
        """The next message, None from the time `until` on; Overdue where it is time to give up."""
        while True:
            if self.overdue():
                raise GraceExpired
            message = self._channel.poll() or self._receive(min(until, self.now() + LOOK_UP))
            if message is not None or self.now() >= until:
                return message

    def _receive(self, until: float) -> Message | None:
        while self._channel.sending() and self.now() < until:  # large messages move only while somebody looks
            if (message := self._channel.poll()) is not None:
                return message
            os.sched_yield()
        return self._bell.wait(self._channel.poll, until)

    def _checked(self, message: Message | None) -> Message:
        if message is None:
            raise TimeoutError("no message came")
        if message.kind == FAILED:
            host = self._ranks[message.sender].host
            raise RunError(f"worker {message.sender - 1} on {host}: {message.payload.tobytes().decode()}")
        return message

    def _account(self, message: Message) -> Arrival | None:
        """Book a message; an arrival of a running order is handed on."""
        worker, seconds = message.sender - 1, math.fsum(message.seconds)
        self.worker_time[worker] += seconds
        order = self._orders.get(worker)
        if message.kind == ARRIVAL and order is not None and order.number == message.order:
            now = time.perf_counter()
            overhead, order.latest = max(now - order.latest - seconds, 0.0), now
            order.left -= message.tasks
            if not order.left:
                del self._orders[worker]
            result = message.payload if order.result is None else order.result
            self.speeds.add(worker, message.seconds, overhead)
            return Arrival(worker, result, message.seconds, overhead)
        self.undelivered[worker] += message.tasks
        self.undelivered_time[worker] += seconds
        if message.kind == STOPPED:
            del self._withdrawn[worker]
            if order is not None:
                self._send(worker, order)
        return None

    def stop(self, workers: IntArray) -> Array:
        """Withdraw what these workers have not delivered; the seconds that each spent on it."""
        now, spent = self.now(), np.zeros(len(workers))
        for j, worker in enumerate(workers.tolist()):
            order = self._orders.pop(worker, None)
            if order is not None and order.sent < math.inf:
                self._channel.send(worker + 1, STOP, order.number)
                self._ring[worker]()
                self._withdrawn[worker] = order
                spent[j] = now - order.latest
        return spent

    def idle(self) -> IntArray:
        """The workers that hold no order."""
        return np.array([worker for worker in range(self.n) if worker not in self._orders], np.int64)

    def state(self) -> State:
        """The accounts; what is under way on the ranks cannot be saved."""
        stopping = np.zeros(self.n, np.int64)
        stopping[[worker for worker in self._withdrawn if worker not in self._orders]] = 1
        return {
            "worker_time": self.worker_time.copy(),
            "undelivered": self.undelivered.copy(),
            "undelivered_time": self.undelivered_time.copy(),
            "stopping": stopping,  # began what is not known yet; whose next order waits counts by that one
        }

    def restore(self, state: State) -> None:
        """Go on with the accounts of an earlier run; all its workers are idle."""
        accounts = {name: entry(state, name, own) for name, own in self.state().items()}
        self.worker_time = accounts["worker_time"]
        self.undelivered = accounts["undelivered"]
        self.undelivered_time = accounts["undelivered_time"]

    def close(self) -> None:
        """Stop everyone, let the workers go, and settle the accounts; who is too late is not waited for."""
        try:
            self._shutdown(math.inf, for_good=False)
        except GraceExpired:
            self._give_up_on_workers(0)

    def abort(self, code: int = 1) -> None:
        """End a run early: who does not leave in time is ended with all ranks, and this exit code."""
        self.overdue = lambda: False
        if not self._shutdown(self.now() + GRACE, for_good=True):
            self._give_up_on_workers(code)

    def _give_up_on_workers(self, code: int) -> None:
        """Wait for nobody any more: those who have not left are ended after the user was told."""
        self._staying.clear()
        self.ended_for_good = True
        atexit.register(end_all_ranks, self._comm, code)

    def _shutdown(self, until: float, for_good: bool) -> bool:
        """Whether all workers have left by then; `for_good`, if no further run will follow on these ranks."""
        if not self._staying:
            return True
        self.ended_for_good = for_good
        self.stop(np.arange(self.n))
        for worker in self._staying:
            self._channel.send(worker + 1, END, together=for_good)
            self._ring[worker]()
        while self._staying:
            message = self._next_message(until)
            if message is None:
                return False
            if message.kind == END:
                self._staying.remove(message.sender - 1)
            elif message.kind in (ARRIVAL, STOPPED):
                self._account(message)
        self._channel.close()
        self._bell.close()
        if self._shared is not None:
            self._shared.close()
        return True


def end_all_ranks(comm: MPI.Comm, code: int = 1) -> None:
    """End all ranks, whatever they are doing."""
    sys.stdout.flush()
    sys.stderr.flush()
    comm.Abort(code)
