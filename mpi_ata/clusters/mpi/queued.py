"""Ranks that several jobs share: orders wait in queues, and each worker does the first one of its queue.

Jobs are driven by threads that take turns; only the main thread calls MPI, in serve() and in what it is asked
to call.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Protocol, TypeVar

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.clusters.mpi.buffers import BufferPool
from mpi_ata.clusters.mpi.chain import Route
from mpi_ata.clusters.mpi.channel import CLOSE, EMPTY, OPEN, Message, Payload
from mpi_ata.clusters.mpi.engine import LOOK_SECONDS, Answer, JobView, Order, Ranks, StoppedOrder
from mpi_ata.clusters.mpi.library import MPI
from mpi_ata.clusters.sharing import QueuedOrder, Share, Sharing
from mpi_ata.layout import MANAGER
from mpi_ata.turns import in_turn_thread

T = TypeVar("T")
LEAVING_SECONDS = 10.0  # that idle workers get to leave
ABORT_SECONDS = 2.0  # and all of them, when jobs were ended early
LATE = 2.0  # times as long as expected: then orders that wait behind are given to others
LATE_SECONDS = 1.0  # at least so much longer
QUESTION_SECONDS = 1e-3  # that a question is expected to take, where nothing is known
QUESTION_LATE_SECONDS = 30.0  # at least so much longer: the first evaluation may read data


class SharingView(JobView, Protocol):
    """A job that shares the ranks with others."""

    share: Share


class QueuedRanks(Ranks):
    """Sends each worker the first order of its queue, and lets jobs know what has come for them."""

    wanted = 1  # it reads all messages, for whichever job they are

    def __init__(self, comm: MPI.Comm, digest: bytes) -> None:
        super().__init__(comm, digest)
        self.sharing = Sharing(self.n)
        self.wake = self._bell.ringer(self._bell.name, None, MANAGER)  # for threads that want their turn back
        self._queues = self.sharing.queues
        self._sent: dict[int, QueuedOrder] = {}  # by worker: what it does, or did a moment ago
        self._orders: Counter[JobView] = Counter()  # that have not ended, by job
        self._latest_order: dict[JobView, Order] = {}  # by job: of its present round
        self._over: list[int] = []  # workers whose order may have ended
        self._changed: set[int] = set()  # workers that may have something to do next
        self._news: set[JobView] = set()  # jobs to which something has happened
        self._calls: dict[JobView, Callable[[], None]] = {}  # by jobs whose threads wait for them
        self._question_seconds = QUESTION_SECONDS  # the longest so far
        self.returned = False  # whether a thread wants its turn back

    def join(self, job: SharingView, template: Array, arrays: Payload) -> None:
        """Let all workers set up a job, with `arrays` beside x; the ones that are dead are lost for it."""
        self.channel.buffers[job.number] = BufferPool(template)
        for worker in set(range(self.n)) - self.staying:
            job._lose(worker, 0)
        self.in_main(job, partial(self._tell_all, OPEN, job.number, arrays))

    def leave(self, job: SharingView) -> None:
        """Let all workers forget a job, none of whose orders is under way, unless they have."""
        if job.number not in self.jobs:
            return
        self.in_main(job, partial(self._tell_all, CLOSE, job.number))
        del self.jobs[job.number], self.channel.buffers[job.number]
        self._latest_order.pop(job, None)
        self._news.discard(job)

    def _tell_all(self, kind: int, job: int, payload: Payload = EMPTY) -> None:
        for worker in self.staying:
            self.channel.send(self.rank[worker], kind, payload=payload, job=job)
            self.ring[worker]()

    def in_main(self, job: JobView, call: Callable[[], T]) -> T:
        """Return what a function returns that calls MPI; the main thread calls it."""
        if not in_turn_thread():
            return call()
        found: list[T] = []
        self._calls[job] = lambda: found.append(call())
        self._wait_turn(job)
        return found[0]

    def _wait_turn(self, job: JobView, until: float = math.inf) -> None:
        """Let others run until something has happened to a job, or it is time to look."""
        share: Share = job.share  # type: ignore[attr-defined]
        share.wait(lambda: -math.inf if job in self._news else until)
        self._news.discard(job)

    def next_job(self, shares: Sequence[Share]) -> int:
        """Wait until one of these jobs can go on, and return which; called in the main thread."""
        while True:
            self._send_next()
            times = [math.inf if share.thread.away else share.ready_at() for share in shares]
            first = min(times)
            if first <= perf_counter() and not self._calls:
                return times.index(first)
            self._serve(first)

    def _serve(self, until: float) -> None:
        """Handle what comes, until something has, and do what threads have asked for."""
        if not self._calls:
            super().receive(self, until)  # type: ignore[arg-type]
        for job, call in self._calls.items():
            call()
            self._news.add(job)
        self._calls.clear()
        self.returned = False

    def receive(self, job: JobView, until: float = math.inf, all_wanted: bool = False) -> bool:
        """Let other jobs run until something has come for this one, or a short time has passed."""
        self._wait_turn(job, min(until, perf_counter() + LOOK_SECONDS))
        return True

    def _read(self, job: JobView) -> bool | None:
        return super()._read(job) or (self.returned or None)

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
        """Queue an order at each of these workers."""
        self._number += 1
        order = Order(job, self._number, x, round, together, plain_bytes=job.plain_bytes)
        self._latest_order[job] = order
        share: Share = job.share  # type: ignore[attr-defined]
        expected = share.expected(np.array(workers, np.int64), np.array(counts, np.int64)).tolist()
        for worker, count, seconds in zip(workers, counts, expected, strict=True):
            self._queue(worker, QueuedOrder(job, seconds, (order, count)))
        return order

    def _queue(self, worker: int, queued: QueuedOrder) -> None:
        self._queues.append(worker, queued, perf_counter())
        self._orders[queued.job] += 1
        self._changed.add(worker)

    def ask(self, job: JobView, worker: int, x: Array, parts: range, answer: Answer) -> Array:
        """Queue a question at a worker, like an order."""
        ask = partial(super().ask, job, worker, x, parts, answer)
        self._queue(worker, QueuedOrder(Question(ask), self._question_seconds))
        return x

    def _send_next(self) -> None:
        """Let workers that have ended an order begin the next one; called in the main thread."""
        self._forget_ended()
        changed, self._changed = self._changed, set()
        for worker in changed:
            if not (line := self._queues.lines[worker]):
                continue
            if worker in self._sent and self._sent[worker].spare:
                super().withdraw(self._sent[worker].job, worker)
                self._forget_ended()
            if worker not in self._sent and not super().is_busy(worker):
                self._begin(worker, line[0])
        if self.sharing.spare_users:
            busy = {*self._sent, *filter(self.is_busy, self.staying)}
            self.sharing.start_spares(self.staying - busy)

    def _forget_ended(self) -> None:
        """Take the orders that have ended out of the queues."""
        over, self._over = self._over, []
        for worker in over:
            if worker in self._sent and self.orders[worker] is None:
                queued = self._sent.pop(worker)
                self._changed.add(worker)
                if not queued.spare:
                    self._remove(worker, queued)

    def start_spare(self, job: JobView, worker: int) -> None:
        """Let an idle worker do one more task of a job's present round; called in the main thread."""
        latest = self._latest_order[job]
        self._number += 1
        order = Order(job, self._number, latest.x, latest.round, False, plain_bytes=job.plain_bytes)
        share: Share = job.share  # type: ignore[attr-defined]
        expected = share.expected(np.array([worker]), 1).item()
        self._begin(worker, QueuedOrder(job, expected, (order, 1), spare=True))

    def spares_of(self, job: JobView) -> list[int]:
        """Return the workers that do spare tasks for a job."""
        return [worker for worker, queued in self._sent.items() if queued.spare and queued.job is job]

    def _remove(self, worker: int, queued: QueuedOrder) -> bool:
        """Take an order out of the queue of a worker, and return whether it was there."""
        self._changed.add(worker)
        if not self._queues.remove(worker, queued.job, perf_counter()):
            return False
        self._orders[queued.job] -= 1
        if not self._orders[queued.job]:
            del self._orders[queued.job]
        return True

    def _begin(self, worker: int, queued: QueuedOrder) -> None:
        self._sent[worker] = queued
        if isinstance(queued.job, Question):
            self.latest[worker], self.excused[worker] = perf_counter(), self.suspended
            queued.job.ask()
            return
        self.orders[worker], self.left[worker] = queued.order
        self._send(worker, queued.order[0])
        self.ring[worker]()

    def end(self, worker: int) -> None:
        """Take note that the order of a worker has ended."""
        super().end(worker)
        self._over.append(worker)

    def _settle(self) -> None:
        """Let jobs book the results that were read; those that have all they want can go on."""
        for job in self.jobs.values():
            if job.arrived:
                self._over += [row[0] for row in job.arrived]
                job._book()
                if job.wanted <= 0:
                    self._news.add(job)

    def _handle(self, message: Message) -> None:
        worker = self._worker[message.sender]
        if (job := self.jobs.get(message.job)) is not None:
            self._news.add(job)
        super()._handle(message)
        if message.order < 0:  # the answer to a question
            self._question_seconds = max(self._question_seconds, perf_counter() - self.latest[worker])
            self._over.append(worker)

    def _send_following(self, worker: int, stopped: StoppedOrder) -> None:
        super()._send_following(worker, stopped)
        self._changed.add(worker)

    def _lose(self, rank: int) -> None:
        worker = self._worker[rank]
        super()._lose(rank)
        self._sent.pop(worker, None)
        for queued in list(self._queues.lines[worker]):
            self._remove(worker, queued)
        self._news.update(self.jobs.values())

    def withdraw(self, job: JobView, worker: int) -> float:
        """Withdraw a worker's order, and return the seconds it has spent since its latest arrival."""
        sent = self._sent.get(worker)
        is_own = sent is not None and sent.job is job
        if sent is None or not is_own or sent.spare:
            self._remove(worker, QueuedOrder(job, 0.0))
        return self.in_main(job, partial(super().withdraw, job, worker)) if is_own else 0.0

    def try_out(self, job: JobView, worker: int, x: Array, round: int) -> None:
        """Give an idle worker a single task, whose result will be dropped."""
        self.in_main(job, partial(super().try_out, job, worker, x, round))

    def has_orders(self, job: JobView) -> bool:
        """Return whether orders of a job are under way, or wait."""
        return job in self._orders

    def is_busy(self, worker: int) -> bool:
        """Return whether a worker has something to do."""
        return super().is_busy(worker) or bool(self._queues.lines[worker])

    def can_be_asked(self, worker: int) -> bool:
        """Return whether a worker would answer a question soon: all queues are served."""
        return True

    def unserved(self, job: JobView) -> list[tuple[int, Order, float]]:
        """Return the orders of a job that wait behind one that takes too long, and for how long it has."""
        now, found = perf_counter() - self.suspended, []
        for worker, first in self._sent.items():
            taken = now - self.latest[worker] + self.excused[worker]
            more = QUESTION_LATE_SECONDS if isinstance(first.job, Question) else LATE_SECONDS
            if first.job is not job and taken > LATE * first.expected + more:
                waiting = [queued.order[0] for queued in self._queues.lines[worker] if queued.job is job]
                found += [(worker, order, taken) for order in waiting]
        return found

    def close(self, final: bool = False, code: int = 0) -> None:
        """Let all workers leave, now that no job is left; those that do not are ended."""
        if self.closed:
            return
        self.dismiss(final)
        until = perf_counter() + (ABORT_SECONDS if final else LEAVING_SECONDS)
        while self.staying and perf_counter() < until:
            super().receive(self, until)  # type: ignore[arg-type]
        if self.staying:
            self.end_stragglers(code)
        else:
            super().close(final)

    def abort(self, code: int = 1) -> None:
        """End all jobs early."""
        self.close(final=True, code=code)


class Question:
    """A question to a worker, to be sent when its turn in the queue comes."""

    def __init__(self, ask: Callable[[], Array]) -> None:
        self.ask = ask
