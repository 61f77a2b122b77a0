"""The manager's side of the MPI cluster; worker.py is its mirror."""

import atexit
import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from mpi_ata.arrays import Array, IntArray, State, entry
from mpi_ata.clusters.buffers import NOWHERE
from mpi_ata.clusters.channel import (
    ARRIVAL,
    EMPTY,
    END,
    FAILED,
    FINAL,
    LOSSY,
    LOST,
    ORDER,
    REACHABLE,
    SHARED,
    STOP,
    STOPPED,
    TOGETHER,
    Channel,
    Message,
)
from mpi_ata.clusters.doorbell import Doorbell
from mpi_ata.clusters.handshake import check_same, handshake, identities, shared_buffers
from mpi_ata.clusters.interface import Arrival, Lost, set_up
from mpi_ata.clusters.ledger import Ledger, in_flight
from mpi_ata.clusters.lifeline import Lifelines
from mpi_ata.clusters.mpi import MPI, acknowledged_losses, end_all_ranks, note_loss, survives_losses
from mpi_ata.errors import RunError
from mpi_ata.launch import host_name, slurm_tasks
from mpi_ata.launch.signals import GraceExpired
from mpi_ata.launch.verdict import note_lost_worker, note_start
from mpi_ata.layout import MANAGER, rank_of, ranks_for, worker_of, workers_in
from mpi_ata.problems import Problem

log = logging.getLogger("mpi_ata")
LOOK_UP = 0.5  # seconds after which a waiting manager checks whether it was asked to end
GRACE = 2.0  # seconds that workers get to leave when a run has failed


@dataclass(slots=True)
class _Order:
    """What a worker was ordered to do, or will be as soon as it has stopped its previous order."""

    number: int
    x: Array
    round: int
    count: int
    together: bool
    left: int
    sent: float = math.inf
    latest: float = math.inf  # when it was sent, or its latest arrival came
    result: Array | None = None  # where the result will be, if in shared memory


class MPICluster:
    """Real workers on the ranks of a communicator, whose manager constructs this."""

    def __init__(
        self,
        comm: MPI.Comm,
        problem: Problem,
        digest: bytes = b"",
        times: str = "",
        overdue: Callable[[], bool] = lambda: False,
    ) -> None:
        n = workers_in(comm.Get_size())
        self.n = n
        self.ledger = Ledger(n)
        self.available = np.ones(n, np.bool_)
        self.overdue = overdue  # whether to give up waiting
        self._comm, self._problem, self._template = comm, problem, problem.x0
        self._rank_of = [rank_of(worker) for worker in range(n)]  # by worker: a call would cost more
        self._worker_of = [worker_of(rank) for rank in range(ranks_for(n))]  # by rank
        self._meet(digest)
        self.sharing: set[int] = set()  # workers that have opened the shared memory
        self.identities = identities(self._ranks, times)
        self._ring = [self._ringer(rank) for rank in self._rank_of]
        self._dead: set[int] = set()  # ranks whose processes have ended
        self._unreported: list[int] = []  # those of them that wait() has not returned yet
        self._bell.watch(self._lifelines.fileno(), self._find_dead)
        self._channel = Channel(comm, MPI.ANY_SOURCE, self._template, self._find_dead)
        self._numbers = 0  # of orders
        self._orders: dict[int, _Order] = {}  # what is running, by worker
        self._stopping: dict[int, _Order] = {}  # orders whose stop is not yet confirmed
        self._staying = set(range(n))  # workers that have not left
        self.ended_for_good = False
        try:
            self._prepare()
        except BaseException:
            self.abort()
            raise

    def _meet(self, digest: bytes) -> None:
        """Exchange addresses with all ranks; shared files are unlinked as soon as all have opened them."""
        try:
            self._bell = Doorbell()
            self._lifelines = Lifelines(self._bell.name)
            self._shared = shared_buffers(host_name(), self._bell.name, self._template, owner=True)
            try:
                self._ranks = handshake(self._comm, self._bell, digest, self._lifelines.port)
                self._accept_lifelines()
                self._comm.Barrier()
                note_start()
            finally:
                self._bell.unlink_flags()
                if self._shared is not None:
                    self._shared.unlink()
        except BaseException:  # the other ranks would wait for this one forever
            atexit.register(end_all_ranks, self._comm)
            raise

    def _accept_lifelines(self) -> None:
        connected = np.zeros(self._comm.Get_size(), np.uint8)
        self._comm.Gather(np.zeros(1, np.uint8), connected, MANAGER)
        self._lifelines.accept(int(connected.sum()))

    def _ringer(self, rank: int) -> Callable[[], None]:
        peer = self._ranks[rank]
        return self._bell.ringer(peer.host, peer.bell, peer.port, rank)

    def _prepare(self) -> None:
        """Wait until all workers are set up, before the clock starts."""
        check_same(self._ranks)
        for ring in self._ring:
            ring()
        set_up(self._problem, None, self.n)
        messages = [self._checked(self._next_message()) for _ in range(self.n)]
        self._early_losses = [self._lose(m.sender) for m in messages if m.kind == LOST]
        if not self.available.any():
            raise RunError(f"no worker is left: {self._early_losses[-1].why}")
        ready = [message for message in messages if message.kind != LOST]
        self._unreachable = sorted(self._worker_of[m.sender] for m in ready if not m.flags & REACHABLE)
        if self._shared is not None:
            self.sharing = {self._worker_of[message.sender] for message in ready if message.flags & SHARED}

    def log_notes(self, sleeping: bool) -> None:
        """Log what the user should know about these ranks; `sleeping` if their tasks mostly sleep."""
        ranks = ranks_for(self.n)
        if (given := slurm_tasks()) not in (None, ranks):
            log.warning(f"Slurm has given {given} tasks to this job, but {ranks} ranks were started")
        if self._unreachable:
            log.warning(f"the doorbell of workers {self._unreachable} cannot be rung: they poll every 10 ms")
        here = sum(rank.host == self._ranks[MANAGER].host for rank in self._ranks)
        if here > (cores := os.cpu_count() or here) and not sleeping:
            log.warning(f"{here} ranks share {cores} cores here: task times include waiting for a core")
        if self._shared is not None and self._shared.room() < 2 * (self.n + 2) * self._template.nbytes:
            log.warning("shared memory is too small for x and all results: what does not fit is sent by MPI")

    def now(self) -> float:
        """Return the time on the manager's monotonic clock."""
        return time.perf_counter()

    def start(
        self, workers: IntArray, x: Array, round: int, counts: IntArray | int = 1, together: bool = False
    ) -> None:
        """Order tasks at the point x: counts[j] of them from workers[j]."""
        if x.shape != self._template.shape or x.dtype != self._template.dtype:
            raise ValueError(
                f"x is {x.dtype} of shape {x.shape}, but x0 {self._template.dtype} {self._template.shape}"
            )
        x.flags.writeable = False  # for the caller too: later orders may use a copy made now
        each = repeat(counts) if isinstance(counts, int) else counts.tolist()
        for worker, count in zip(workers.tolist(), each, strict=False):
            if worker in self._orders:
                raise RuntimeError("a worker holds one order at a time; stop it first")
            self._numbers += 1
            self._orders[worker] = order = _Order(self._numbers, x, round, count, together, count)
            if worker not in self._stopping:
                self._send(worker, order)

    def _send(self, worker: int, order: _Order) -> None:
        """Send an order; point and result go through shared memory where possible, otherwise by message."""
        x_slot = result_slot = NOWHERE
        if worker in self.sharing and self._shared is not None:
            order.x = self._shared.put(order.x)
            order.result = self._shared.free() if order.together or order.count == 1 else None
            x_slot, result_slot = self._shared.number_of(order.x), self._shared.number_of(order.result)
        payload = order.x if x_slot == NOWHERE else EMPTY
        self._channel.send(
            self._rank_of[worker],
            ORDER,
            order.number,
            order.round,
            order.count,
            TOGETHER if order.together else 0,
            (),
            payload,
            x_slot,
            result_slot,
        )
        self._ring[worker]()
        order.sent = order.latest = time.perf_counter()

    def wait(self, timeout: float | None = None) -> Arrival | Lost:
        """Return the next arrival or loss."""
        if self._early_losses:
            return self._early_losses.pop(0)
        until = math.inf if timeout is None else self.now() + timeout
        while self._orders:
            message = self._next_message(until)
            if message is None:
                raise TimeoutError(f"nothing arrived within {timeout} seconds")
            if message.kind == LOST:
                return self._lose(message.sender)
            if (arrival := self._account(self._checked(message))) is not None:
                return arrival
        raise RuntimeError("nothing is running, so there is nothing to wait for")

    def _next_message(self, until: float = math.inf) -> Message | None:
        """Return the next message, None from the time `until` on; GraceExpired if it is time to give up."""
        while True:
            if self.overdue():
                raise GraceExpired
            message = self._poll() or self._receive(min(until, self.now() + LOOK_UP))
            if message is not None or self.now() >= until:
                return message

    def _receive(self, until: float) -> Message | None:
        while self._channel.sending() and self.now() < until:  # large messages advance only while polled
            if (message := self._poll()) is not None:
                return message
            os.sched_yield()
        return self._bell.wait(self._poll, until)

    def _poll(self) -> Message | None:
        """Return the next message; of a dead worker, all that it has sent comes before its loss."""
        message = self._channel.poll()
        if message is None and self._unreported:
            return Message(self._unreported.pop(0), LOST, 0, 0, 0, NOWHERE, NOWHERE, 0, [], EMPTY)
        return message

    def _find_dead(self) -> set[int]:
        """Look for ranks that have died, and return all of them."""
        found = [*self._lifelines.broken(), *(acknowledged_losses(self._comm) if survives_losses else ())]
        for rank in found:
            if rank not in self._dead:
                self._dead.add(rank)
                self._unreported.append(rank)
                self._channel.abandon(rank)
        return self._dead

    def _lose(self, rank: int) -> Lost:
        """Strike a dead worker off, with what it was doing."""
        worker, identity = self._worker_of[rank], self.identities[self._worker_of[rank]]
        note_lost_worker(f"worker {worker} on {identity.host} (slot {identity.local_index}) has died")
        busy = self._orders.pop(worker, None), self._stopping.pop(worker, None)
        tasks = int(any(order is not None for order in busy))  # nobody knows whether it had begun the next
        self.ledger.lose(worker, tasks)
        self.available[worker] = False
        self._staying.discard(worker)
        return Lost(
            worker, tasks, "its process has ended: it was killed, crashed, exited or ran out of memory"
        )

    def _checked(self, message: Message | None) -> Message:
        if message is None:
            raise TimeoutError("no message came")
        if message.kind == FAILED:
            host = self._ranks[message.sender].host
            worker = self._worker_of[message.sender]
            raise RunError(f"worker {worker} on {host}: {message.payload.tobytes().decode()}")
        return message

    def _account(self, message: Message) -> Arrival | None:
        """Book a message on the ledger and return the arrival, if it belongs to a running order."""
        worker, seconds = self._worker_of[message.sender], math.fsum(message.seconds)
        order = self._orders.get(worker)
        if message.kind == ARRIVAL and order is not None and order.number == message.order:
            now = time.perf_counter()
            overhead, order.latest = max(now - order.latest - seconds, 0.0), now
            order.left -= message.tasks
            if not order.left:
                del self._orders[worker]
            result = message.payload if order.result is None else order.result
            self.ledger.deliver(worker, message.seconds, seconds, overhead)
            return Arrival(worker, result, message.seconds, overhead)
        if worker not in self._staying:  # what it was doing is counted as lost
            return None
        self.ledger.stop(worker, message.tasks, seconds)
        if message.kind == STOPPED:
            del self._stopping[worker]
            if order is not None:
                self._send(worker, order)
        return None

    def stop(self, workers: IntArray) -> Array:
        """Stop what these workers have not delivered and return the seconds that each spent on it."""
        now, spent = self.now(), np.zeros(len(workers))
        for j, worker in enumerate(workers.tolist()):
            order = self._orders.pop(worker, None)
            if order is not None and order.sent < math.inf:
                self._channel.send(self._rank_of[worker], STOP, order.number)
                self._ring[worker]()
                self._stopping[worker] = order
                spent[j] = now - order.latest
        return spent

    def idle(self) -> IntArray:
        """Return the workers that hold no order."""
        return np.array([worker for worker in range(self.n) if worker not in self._orders], np.int64)

    def state(self) -> State:
        """Return the accounts, and who has begun a task whose fate is not known: that cannot be saved."""
        stopping, running = np.zeros(self.n, np.int64), np.zeros(self.n, np.int64)
        running[list(self._orders)] = 1
        stopping[[worker for worker in self._stopping if worker not in self._orders]] = 1
        return self.ledger.state() | {"stopping": stopping, "running": running}

    def restore(self, state: State, workers: State | None = None) -> None:
        """Resume the accounts of an earlier run; all workers are idle, and tasks then in flight are lost."""
        none = np.zeros(self.n, np.int64)
        begun = {name: entry(state, name, none) for name in ("stopping", "running")}
        self.ledger.restore(state, workers)
        self.ledger.lose(np.arange(self.n), in_flight(begun))

    def take_over(self, workers: State, rows: list[tuple[int, int]]) -> None:
        """Start from what is saved of other workers: `rows` pairs a worker here with its row there."""
        self.ledger.take_over(workers, rows)

    def close(self) -> None:
        """Stop everyone, let the workers leave, and settle the accounts; late ones are not waited for."""
        try:
            self._shutdown(math.inf, final=False)
        except GraceExpired:
            self._give_up_on_workers(0)

    def abort(self, code: int = 1) -> None:
        """End a run early; if a worker does not leave in time, all ranks are ended with this exit code."""
        self.overdue = lambda: False
        if not self._shutdown(self.now() + GRACE, final=True):
            self._give_up_on_workers(code)

    def _give_up_on_workers(self, code: int) -> None:
        """Stop waiting for workers: those still there are ended when this process exits."""
        self._staying.clear()
        self.ended_for_good = True
        if survives_losses:  # MPI_Abort would leave ranks behind
            note_loss()
            self._lifelines.close()
        else:
            atexit.register(end_all_ranks, self._comm, code)

    def _shutdown(self, until: float, final: bool) -> bool:
        """Let the workers leave and return whether all did in time; `final` if no further run follows."""
        if not self._staying:
            return True
        self.ended_for_good = final or bool(self._dead)
        self.stop(np.arange(self.n))
        flags = (FINAL if self.ended_for_good else 0) | (LOSSY if self._dead else 0)
        for worker in self._staying:
            self._channel.send(self._rank_of[worker], END, flags=flags)
            self._ring[worker]()
        while self._staying:
            message = self._next_message(until)
            if message is None:
                return False
            if message.kind == END:
                self._staying.discard(self._worker_of[message.sender])
            elif message.kind == LOST:
                self._lose(message.sender)
            elif message.kind in (ARRIVAL, STOPPED):
                self._account(message)
        if self._dead:
            self.ended_for_good = True
            note_loss()  # workers wait for the end of this process
        else:
            self._lifelines.close()
        self._channel.close()
        self._bell.close()
        if self._shared is not None:
            self._shared.close()
        return True
