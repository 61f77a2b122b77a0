"""The worker ranks of a communicator: who is there, what each does, and the messages from and to them.

Nothing of a job lives here.  Each order belongs to a job, which books what comes of it and judges its worker.
"""

import atexit
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from secrets import token_bytes, token_hex
from time import perf_counter
from typing import Protocol

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.clusters.mpi.buffers import NOWHERE, SharedBufferPool, shared_buffers, unlink_shared_file
from mpi_ata.clusters.mpi.chain import Route, open_links
from mpi_ata.clusters.mpi.channel import (
    ARRIVAL,
    BROKEN,
    EMPTY,
    END,
    EVALUATE,
    EXCHANGED,
    FAILED,
    FINAL,
    HEADER,
    NO_EXCHANGE,
    ORDER,
    READY,
    RESULT_FIELDS,
    SHARED,
    STOP,
    STOPPED,
    TOGETHER,
    Channel,
    Message,
    Payload,
    is_short,
)
from mpi_ata.clusters.mpi.handshake import (
    exchange_doors,
    exchange_ranks,
    let_workers_begin,
    link_addresses,
    meeting,
    opening,
)
from mpi_ata.clusters.mpi.introductions import SECRET_BYTES
from mpi_ata.clusters.mpi.library import MPI, acknowledged_losses, end_all_ranks, note_loss, survives_losses
from mpi_ata.clusters.mpi.liveness import Doorbell, Lifelines
from mpi_ata.clusters.sample_indices import SampleIndices
from mpi_ata.launch.exit_report import note_start
from mpi_ata.layout import MANAGER, rank_of, ranks_for, worker_of, workers_in

Answer = Callable[[int, Message], None]  # called with the worker and what it has sent
# Results: worker, order, seconds of its tasks, their bytes, and when they came after the ones before.
Row = tuple[int, "Order", list[float], bytearray, float]
unpack, HEADER_BYTES = RESULT_FIELDS.unpack_from, HEADER.size
LOOK_SECONDS = 0.5  # after which a waiting manager checks whether it was asked to end


class JobView(Protocol):
    """A job as the ranks know it: who wants to hear of its orders.

    Its methods are for the ranks alone, and no part of a cluster's interface.
    """

    number: int  # of the job among those that share the ranks
    ready: dict[int, int]  # by worker: the flags of those that are set up for it
    wanted: int  # tasks that it waits for: no more messages are read than these need
    arrived: list[Row]  # short results that were read and not booked yet
    plain_bytes: int  # of a short result that is an array like x; -1: its results are of other kinds
    draws: SampleIndices | None
    pack_point: Callable[[Array], Payload]  # as it is sent
    break_exchange: Callable[[int], None]  # called with a worker that cannot complete it

    def _book(self) -> None:
        """Book what has arrived."""

    def _arrive(self, worker: int, order: "Order", message: Message) -> None:
        """Book results of an order under way, or of a trial, that are not short, or no arrays like x."""

    def _drop(self, worker: int, message: Message) -> float:
        """Book tasks that nobody wants any more, and return their seconds."""

    def _confirm_stop(self, worker: int, stopped: "StoppedOrder") -> None:
        """Note that a worker has stopped an order."""

    def _fail(self, worker: int, order: "Order", message: Message) -> None:
        """Book an order that failed, and judge its worker."""

    def _fail_to_set_up(self, worker: int, message: Message) -> None:
        """Note that the setup of a worker has failed."""

    def _lose(self, worker: int, tasks: int) -> None:
        """Note that a worker has died, with this many tasks of the job."""


@dataclass(eq=False, slots=True)
class Order:
    """What workers were ordered to do by one call; how far each of them is, the table of the ranks knows."""

    job: JobView
    number: int
    x: Array
    round: int
    together: bool
    route: Route | None = None  # by which x and the results travel in an exchange
    trial: bool = False  # whether it tries a worker out, and is not for the job
    plain_bytes: int = -1  # of its results, if these are short; but for trials
    given: float = field(default_factory=perf_counter)  # when


@dataclass(eq=False, slots=True)
class StoppedOrder:
    """A worker's row of the table when it was told to stop, until it confirms that it has."""

    order: Order
    left: int
    latest: float
    excused: float
    result: Array | None  # where its worker may still write
    since: float = field(default_factory=perf_counter)  # when it was told
    unused: float = 0.0  # seconds reported since then
    noted: float = 0.0  # seconds since then that are in overruns()
    hung: bool = False  # whether its worker was found to hang since then
    reported: bool = False  # whether all its tasks were reported by an exchange, and may be once more


class Ranks:
    """Sends orders to worker ranks, reads what they send, and notices whose process has ended."""

    def __init__(
        self, comm: MPI.Comm, digest: bytes, template: Array | None = None, exchange: str = "star"
    ) -> None:
        """Take a template of what is sent if there is one job: only then memory and a chain are shared."""
        self.n = workers_in(comm.Get_size())
        self.jobs: dict[int, JobView] = {}
        # The table of orders, with a row per worker: what it does, or will do after what it is to stop.
        self.orders: list[Order | None] = [None] * self.n
        self.left = [0] * self.n  # tasks that have not come back
        self.latest = [0.0] * self.n  # when the order was sent, or its latest arrival came
        self.excused = [0.0] * self.n  # seconds of suspension before that
        self.results: dict[int, Array] = {}  # where results will be, if in shared memory
        self.stopping: dict[int, StoppedOrder] = {}  # by worker: orders whose stop is not confirmed
        self.staying = set(range(self.n))  # workers that have not left
        self.drained = True  # whether all messages had been read at some time during the latest receive()
        self.suspended = 0.0  # seconds for which this process was stopped, or did something else
        self.dead: set[int] = set()  # ranks whose processes have ended
        self.closed = False  # whether all have left, or are given up on
        self.ended_for_good = False  # whether no further run can follow on these ranks
        self._unreported: list[int] = []  # dead ranks that no job knows of yet
        self._answers: dict[int, Answer] = {}  # to questions, by their numbers
        self._number = self._questions = 0  # of the latest
        self._latest = perf_counter()  # when this process last waited
        self.rank = [rank_of(worker) for worker in range(self.n)]  # by worker: a call would cost more
        self._worker = [worker_of(rank) for rank in range(ranks_for(self.n))]  # by rank
        self.comm = comm
        with meeting(comm):
            self._meet(template, digest, exchange)
        self._bell.watch(self._lifelines.fileno(), self.find_dead)

    def _meet(self, template: Array | None, digest: bytes, exchange: str) -> None:
        """Open what others connect to, and exchange addresses; the worker's method is its mirror."""
        comm, memory, secret = self.comm, f"mpi_ata-{token_hex(16)}", token_bytes(SECRET_BYTES)
        try:
            self.ranks = exchange_ranks(comm, digest)
            hosts = [rank.host for rank in self.ranks]
            with opening(comm):
                self._bell = Doorbell(MANAGER, hosts)
                self._bell.share_flags(f"{memory}-flags", len(hosts))
                self._lifelines = Lifelines(secret, len(set(hosts)) == 1, self.n)
                self.links, self.shared = None, None
                if template is not None:
                    self.links = open_links(exchange, template, hosts)
                    self.shared = shared_buffers(hosts[MANAGER], f"{memory}-slots", template, owner=True)
            doors = exchange_doors(comm, self._bell, self.links, self._lifelines.port, memory, secret)
            with opening(comm, self._lifelines.admit):
                if self.links is not None:
                    self.links.meet(MANAGER, link_addresses(hosts, doors), secret)
                bells = [
                    (doors[rank].bell, doors[rank].bell_address(hosts[rank]), rank) for rank in self.rank
                ]
                self.ring = [self._bell.ringer(*bell) for bell in bells]  # functions that wake a worker
                self.channel = Channel(comm, MPI.ANY_SOURCE, template, self.find_dead, self.dead)
            self._watch_lifelines()
            note_start()
            let_workers_begin(comm)
        finally:  # by now all have opened them
            unlink_shared_file(f"{memory}-flags")
            unlink_shared_file(f"{memory}-slots")

    def _watch_lifelines(self) -> None:
        connected = np.zeros(self.comm.Get_size(), np.uint8)
        self.comm.Gather(np.zeros(1, np.uint8), connected, MANAGER)
        self._lifelines.watch(np.flatnonzero(connected).tolist())
        self.unwatched = [w for w in range(self.n) if not connected[rank_of(w)]]  # only by deadlines

    def start(
        self,
        job: JobView,
        workers: list[int],
        x: Array,
        round: int,
        counts: list[int],
        together: bool,
        route: Route | None = None,
    ) -> Order:
        """Give each of these workers an order; it is sent as soon as the previous one is stopped."""
        orders, left, latest, excused = self.orders, self.left, self.latest, self.excused
        self._number, suspended = self._number + 1, self.suspended
        order = Order(job, self._number, x, round, together, route, plain_bytes=job.plain_bytes)
        now = order.given
        for worker, count in zip(workers, counts, strict=True):
            if orders[worker] is not None:
                raise RuntimeError("a worker holds one order at a time; stop it first")
            orders[worker], left[worker], latest[worker], excused[worker] = order, count, now, suspended
        self._send_all(order, [i for i in workers if i not in self.stopping] if self.stopping else workers)
        if not self._bell.all_awake():
            for worker in workers:
                self.ring[worker]()
        return order

    def _send_all(self, order: Order, workers: list[int]) -> None:
        """Send an order to workers; where it is short, most messages are the same."""
        job, left, rank = order.job, self.left, self.rank
        same = order.route is None and job.draws is None and job.plain_bytes >= 0
        if not (same and is_short(order.x.nbytes, 0)):
            for worker in workers:
                self._send(worker, order)
            return
        counts = [left[worker] for worker in workers]
        point, flags = order.x.tobytes(), TOGETHER if order.together else 0
        messages = {
            n: self.channel.short(ORDER, order.number, order.round, n, flags, point) for n in set(counts)
        }
        self.channel.isend_all([messages[count] for count in counts], [rank[worker] for worker in workers])

    def try_out(self, job: JobView, worker: int, x: Array, round: int) -> None:
        """Give an idle worker a single task, whose result will be dropped."""
        self._number += 1
        self.orders[worker] = order = Order(job, self._number, x, round, True, trial=True)
        self.left[worker] = 1
        self._send(worker, order)
        self.ring[worker]()

    def _send(self, worker: int, order: Order) -> None:
        """Send an order; point and result go through shared memory where possible."""
        self.latest[worker], self.excused[worker] = perf_counter(), self.suspended
        flags, x_slot, result_slot = TOGETHER if order.together else 0, NOWHERE, NOWHERE
        left, draws = self.left[worker], order.job.draws
        if order.route is not None:
            flags, payload = flags | EXCHANGED, order.route.packed()
        else:
            order.x, x_slot = self._place(order.job, worker, order.x)
            payload = order.job.pack_point(order.x) if x_slot == NOWHERE else EMPTY
        if x_slot != NOWHERE and self.shared is not None and (order.together or left == 1):
            result_slot = self._reserve_result(worker, self.shared)
        indices = () if draws is None or order.trial else draws.of(worker)
        fields = self.rank[worker], ORDER, order.number, order.round, left, flags, ()
        self.channel.send(*fields, payload, x_slot, result_slot, indices, order.job.number)

    def _place(self, job: JobView, worker: int, x: Array) -> tuple[Array, int]:
        """Return x and its slot, in memory that is shared with a worker if that is possible."""
        if self.shared is None or not job.ready.get(worker, 0) & SHARED:
            return x, NOWHERE
        x = self.shared.put(x)
        return x, self.shared.number_of(x)

    def _reserve_result(self, worker: int, shared: SharedBufferPool) -> int:
        """Return a slot for the result of a worker's order, shared with it; NOWHERE if memory is full."""
        if (result := shared.free()) is not None:
            self.results[worker] = result
        return shared.number_of(result)

    def ask(self, job: JobView, worker: int, x: Array, parts: range, answer: Answer) -> Array:
        """Let a worker evaluate parts at x, and call `answer` with what it sends; return x as it was sent."""
        self._questions -= 1  # negative: a late answer is not taken for that of a task
        self._answers[self._questions] = answer
        x, slot = self._place(job, worker, x)
        fields = EVALUATE, self._questions, parts.start, parts.stop
        payload = x if slot == NOWHERE else EMPTY
        self.channel.send(self.rank[worker], *fields, payload=payload, x_slot=slot, job=job.number)
        self.ring[worker]()
        return x

    def end(self, worker: int) -> None:
        """Take note that the order of a worker has ended."""
        self.orders[worker] = None
        self.results.pop(worker, None)

    def deliver(self, worker: int, tasks: int, came: float) -> float:
        """Take note that tasks of an order have come back, and return how long after the ones before."""
        order = self.orders[worker]
        assert order is not None
        turnaround, self.latest[worker] = came - self.latest[worker], came
        self.excused[worker] = self.suspended
        self.left[worker] -= tasks
        order.job.wanted -= tasks
        if not self.left[worker]:
            self.end(worker)
        return turnaround

    def withdraw(self, job: JobView, worker: int) -> float:
        """Withdraw a worker's order, and return the seconds it has spent since its latest arrival.

        What it still delivers of the order is dropped.  The order is remembered until the worker confirms
        that it has stopped: until then it may write into shared memory.
        """
        order = self.orders[worker]
        if order is None or order.job is not job or order.trial:
            return 0.0
        result = self.results.get(worker)
        self.end(worker)
        if worker in self.stopping:  # so it was not sent
            return 0.0
        self._tell(worker, STOP, order.number)
        row = self.left[worker], self.latest[worker], self.excused[worker]
        self.stopping[worker] = stopped = StoppedOrder(order, *row, result)
        return stopped.since - stopped.latest

    def drop(self, worker: int) -> JobView | None:
        """Forget all orders of a worker, and return whose task it was at, if it was at one."""
        stopped = self.stopping.pop(worker, None)
        doing = self.orders[worker] if stopped is None else stopped.order
        self.end(worker)
        return None if doing is None else doing.job

    def has_orders(self, job: JobView) -> bool:
        """Return whether orders of a job are under way, trial tasks aside."""
        return any(each is not None and each.job is job and not each.trial for each in self.orders)

    def is_busy(self, worker: int) -> bool:
        """Return whether a worker has something to do."""
        return self.orders[worker] is not None or worker in self.stopping

    def can_be_asked(self, worker: int) -> bool:
        """Return whether a worker would answer a question soon."""
        return not self.is_busy(worker)

    def unserved(self, job: JobView) -> list[tuple[int, Order, float]]:
        """Return the orders of a job that wait behind one that takes too long, and for how long it has."""
        return []

    def silent(self, job: JobView) -> list[tuple[int, Order, int, float]]:
        """Return who works for a job, at which order, tasks left, and the seconds for which nothing came."""
        now, found = perf_counter() - self.suspended, []
        for worker, order in enumerate(self.orders):
            if order is None or order.job is not job or order.trial:
                continue
            left, latest, excused = self.left[worker], self.latest[worker], self.excused[worker]
            if (stopped := self.stopping.get(worker)) is not None:
                order, left, latest, excused = stopped.order, stopped.left, stopped.latest, stopped.excused
            found.append((worker, order, left, now - latest + excused))
        return found

    def abandon(self, worker: int) -> None:
        """Stop waiting for a worker to receive what was sent to it."""
        self.channel.abandon(self.rank[worker])

    def _tell(self, worker: int, kind: int, order: int = 0, flags: int = 0, job: int = 0) -> None:
        """Send a short message to a worker, without waiting, and wake it."""
        self.channel.send(self.rank[worker], kind, order, flags=flags, job=job)
        self.ring[worker]()

    def begin_waiting(self) -> float:
        """Return the time; what has passed since the latest wait is not the workers' fault.

        MPI may send nothing while nobody waits for an answer.
        """
        now = perf_counter()
        self.suspended += now - self._latest
        self._latest = now
        return now

    def receive(self, job: JobView, until: float = math.inf, all_wanted: bool = False) -> bool:
        """Handle what comes next, and return whether anything came within a short time.

        Messages are read as long as there are any and the job wants more; with `all_wanted`, until it has
        all that it wants.
        """
        began = self.begin_waiting()
        until = min(until, began + LOOK_SECONDS)
        self.drained = False
        look, came = partial(self._read, job), None
        try:
            came = None if all_wanted else look()
            while (came is None or all_wanted) and job.wanted > 0 and self._wait(look, until):
                came = True
        except MPI.Exception as error:  # for a dead rank, instead of a message
            self.channel.note_loss(error)
        self._settle()
        self._latest = perf_counter()
        # A process that slept for longer than it asked for was stopped, and perhaps the workers with it.
        self.suspended += max(self._latest - began - 2 * LOOK_SECONDS, 0.0)
        return came is not None

    def _read(self, job: JobView) -> bool | None:
        """Handle the messages that have come, as far as a job wants them; None if there was none."""
        channel, orders, worker_of, came = self.channel, self.orders, self._worker, None
        left, latest, excused, capacity = self.left, self.latest, self.excused, channel.capacity
        filled, buffer, times, empty = channel.filled, channel.buffer, channel.seconds, channel.empty
        while job.wanted > 0:
            if not filled():
                if channel.incoming and (message := channel.completed()) is not None:
                    self._settle()
                    self._handle(message)
                elif self._unreported:
                    self._lose(self._unreported.pop(0))  # all that it has sent is handled
                else:
                    self.drained = True
                    return came
                came = True
                continue
            came = True
            # Most messages are short results, which need no object of their own.
            sender, kind, number, tasks, count, size, flags = unpack(buffer)
            worker, end = worker_of[sender], HEADER_BYTES + 8 * count + size
            if (
                kind == ARRIVAL
                and (order := orders[worker]) is not None
                and number == order.number
                and size == order.plain_bytes
                and 0 < count == tasks <= (rest := left[worker])
                and end <= capacity
                and not flags
            ):
                seconds, now = [times[0]] if count == 1 else times[:count].tolist(), perf_counter()
                whose = order.job
                whose.arrived.append((worker, order, seconds, buffer[end - size : end], now - latest[worker]))
                empty()
                whose.wanted -= tasks
                if rest > tasks:
                    left[worker], latest[worker], excused[worker] = rest - tasks, now, self.suspended
                else:
                    orders[worker] = None
            elif (message := channel.read()) is not None:
                self._settle()
                self._handle(message)
        return came

    def _settle(self) -> None:
        """Let jobs book the results that were read, before anything else happens to their workers."""
        for job in self.jobs.values():
            if job.arrived:
                job._book()

    def _wait(self, look: Callable[[], bool | None], until: float) -> bool | None:
        """Return what `look` finds, as soon as it finds something; None if that is not before `until`."""
        channel = self.channel  # what it sends and receives advances only while polled
        while (channel.sending() or channel.receiving()) and perf_counter() < until:
            if (found := look()) is not None:
                return found
            os.sched_yield()
        if perf_counter() >= until:
            self.find_dead()
        return self._bell.wait(look, until)

    def _handle(self, message: Message) -> None:
        """Take note of what a worker has sent, and let the job that it is about book it."""
        worker, kind = self._worker[message.sender], message.kind
        order = self.orders[worker]
        if order is not None and order.number != message.order:
            order = None
        if order is not None and kind == ARRIVAL:
            order.job._arrive(worker, order, message)
        elif kind == READY:
            if (job := self.jobs.get(message.job)) is not None:
                job.ready[worker] = message.flags
        elif kind == END:
            self.staying.discard(worker)
        elif message.order < 0:
            if (answer := self._answers.pop(message.order, None)) is not None:
                answer(worker, message)
        elif worker not in self.staying:  # what it was doing is counted as lost
            return
        elif kind == BROKEN:
            if order is not None:
                order.job.break_exchange(worker)
        elif kind == FAILED and not message.order:
            if (job := self.jobs.get(message.job)) is not None:
                job._fail_to_set_up(worker, message)
        elif kind == FAILED:
            failed = order if worker not in self.stopping else self.stopping[worker].order
            if failed is not None:  # else it was delivered before
                failed.job._fail(worker, failed, message)
        else:
            self._take_stopped(worker, order, message)

    def _take_stopped(self, worker: int, order: Order | None, message: Message) -> None:
        """Take note of tasks that nobody wants any more; after a stop, send the worker's next order."""
        stopped = self.stopping.get(worker)
        if order is not None:  # a trial task that the end of the run has stopped
            order.job._drop(worker, message)
            self.end(worker)
        elif stopped is not None:
            if not (stopped.reported and message.kind == ARRIVAL):
                stopped.unused += stopped.order.job._drop(worker, message)
            stopped.reported = stopped.reported or bool(message.flags & EXCHANGED)
            if message.kind == STOPPED:
                self._send_following(worker, stopped)

    def _send_following(self, worker: int, stopped: StoppedOrder) -> None:
        """Send the next order of a worker that has stopped the one before."""
        del self.stopping[worker]
        stopped.order.job._confirm_stop(worker, stopped)
        if (following := self.orders[worker]) is not None:
            self._send(worker, following)
            self.ring[worker]()

    def _lose(self, rank: int) -> None:
        """Let all jobs know that a worker has died; nobody knows whether it had begun its next task."""
        worker = self._worker[rank]
        self.channel.forget(rank)
        self._settle()
        at = self.drop(worker)
        self.staying.discard(worker)
        for job in list(self.jobs.values()):
            job._lose(worker, int(job is at))

    def find_dead(self) -> set[int]:
        """Look for ranks that have died, and return all of them."""
        found = [*self._lifelines.broken(), *(acknowledged_losses(self.comm) if survives_losses else ())]
        for rank in found:
            if rank not in self.dead:
                self.dead.add(rank)
                self._unreported.append(rank)
                self.channel.abandon(rank)
        return self.dead

    def close_links(self) -> None:
        """Close the connections of an exchange, here and on all workers: there will be none any more."""
        if self.links is not None:
            self.links.close()
            self.links = None
            for worker in self.staying:
                self._tell(worker, NO_EXCHANGE)

    def dismiss(self, final: bool) -> None:
        """Ask all workers to leave; `final` if no further run follows."""
        for worker in self.staying:
            self._tell(worker, END, flags=FINAL if final else 0)

    def end_stragglers(self, code: int) -> None:
        """End workers that do not leave: now, or with all ranks when this process exits."""
        self._leave_without_finalize()
        if survives_losses and not self.staying.intersection(self.unwatched):
            for worker in self.staying:  # MPI_Abort would leave some behind
                self._lifelines.cut(self.rank[worker])
        else:
            atexit.register(end_all_ranks, self.comm, code)
        self.staying.clear()
        self.ended_for_good = self.closed = True

    def _leave_without_finalize(self) -> None:
        """Let the workers wait for the end of this process, since MPI_Finalize would wait for dead ones."""
        note_loss()
        self._lifelines.hold_until_exit()

    def close(self, final: bool) -> None:
        """Close all connections; every worker is ready to leave, or dead."""
        self.find_dead()
        if self.dead:
            self._leave_without_finalize()
        else:
            self._lifelines.dismiss()
        self.channel.close()
        self._bell.close()
        if self.links is not None:
            self.links.close()
        if self.shared is not None:
            self.shared.close()
        self.ended_for_good, self.closed = final or bool(self.dead), True
