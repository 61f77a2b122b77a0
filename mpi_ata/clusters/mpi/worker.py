"""The worker's side of the MPI cluster: the mirror of manager.py."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, zip_longest
from typing import Any

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.clusters.bfloat16 import point_wire, results_wire
from mpi_ata.clusters.computations import (
    add_up,
    check_result,
    compute,
    evaluated_part,
    first_point,
    set_up,
    surely_finite,
    template_of,
)
from mpi_ata.clusters.interface import ClusterSettings
from mpi_ata.clusters.mpi.buffers import NOWHERE, BufferPool, shared_buffers
from mpi_ata.clusters.mpi.chain import Passing, open_links
from mpi_ata.clusters.mpi.channel import (
    ARRIVAL,
    BAD_RESULT,
    CLOSE,
    END,
    EVALUATE,
    EVALUATED,
    FAILED,
    FALLBACK,
    FINAL,
    GLOBAL_RANDOM,
    INLINE,
    NO_EXCHANGE,
    OPEN,
    ORDER,
    REACHABLE,
    READY,
    SHARED,
    STOPPED,
    TOGETHER,
    Channel,
    Message,
    Payload,
)
from mpi_ata.clusters.mpi.handshake import (
    ENCODING_ERRORS,
    exchange_doors,
    exchange_ranks,
    link_addresses,
    meeting,
    opening,
    unpack_arrays,
    wait_to_begin,
)
from mpi_ata.clusters.mpi.library import MPI, end_without_manager
from mpi_ata.clusters.mpi.liveness import HEARING_SECONDS, Doorbell, Lifeline
from mpi_ata.errors import BadResultError, RunError, describe_error, users_code
from mpi_ata.layout import MANAGER, worker_of, workers_in
from mpi_ata.packing import EMPTY, Packed
from mpi_ata.problems import AnyProblem, ProblemAbilities, Task, returns_values, task_streams
from mpi_ata.randomness import Streams, global_states
from mpi_ata.times import DrawnTimes


class ExpectedTasks:
    """The tasks of a worker's orders, and guesses at those of the next one."""

    def __init__(self, streams: Streams, worker: int) -> None:
        self._streams, self._worker = streams, worker
        self._latest: int | None = None  # the first index of the latest order, where indices are shared
        self._step = 0  # how much larger it was than that of the order before

    def of_order(self, round: int, number: int, count: int, indices: Sequence[int]) -> Iterator[Task]:
        """Return the tasks of an order, and after them as many of the next round.

        Indices of the next round are as much larger as those of this one were than those before.
        """
        if indices:
            self._step = 0 if self._latest is None else indices[0] - self._latest
            self._latest = indices[0]
        return self._tasks(round, range(number, number + count), tuple(indices))

    def _tasks(self, round: int, numbers: range, indices: tuple[int, ...]) -> Iterator[Task]:
        for number, index in zip_longest(numbers, indices):
            yield Task(self._streams, round, self._worker, number, None, index)
        if indices and self._step <= 0:
            return
        following = [index + self._step for index in indices]
        for number, later in zip_longest(range(len(numbers)), following):
            yield Task(self._streams, round + 1, self._worker, number, None, later)


class TaskSequence:
    """The tasks of one worker, numbered within each round; `poll_stop` tells a task whether to stop."""

    def __init__(
        self,
        problem: AnyProblem,
        worker: int,
        seed: int,
        times: DrawnTimes | None,
        poll_stop: Callable[[], bool] | None,
    ) -> None:
        self._expect = ProblemAbilities.of(problem).expect
        self._worker, self._streams, self._times = worker, task_streams(seed), times
        self._poll_stop = poll_stop
        self._expected = None if self._expect is None else ExpectedTasks(self._streams, worker)
        self._draws: list[int] = []  # the indices of the order's tasks, where the problem shares draws
        self._round, self._number = -1, 0  # of the next task

    def first(self) -> Task:
        """Return the task that is done before the clock starts."""
        return Task(self._streams, 0, self._worker, 0)

    def begin(self, order: Message) -> None:
        """Begin the tasks of an order."""
        if order.round != self._round:
            self._round, self._number = order.round, 0
        self._draws = list(order.indices)

    def announce(self, count: int) -> None:
        """Let the problem prepare for the tasks of an order, if it can; that is not part of any task."""
        if self._expect is not None and self._expected is not None:
            tasks = self._expected.of_order(self._round, self._number, count, self._draws)
            with users_code("expect(tasks) of the problem failed"):
                self._expect(tasks)

    def take(self, count: int) -> list[Task]:
        """Return the next tasks of the order; they have the same numbers until advance()."""
        fixed, number = (self._streams, self._round, self._worker), self._number
        if not self._draws:
            return [Task(*fixed, number + more, self._poll_stop) for more in range(count)]
        indices, self._draws = self._draws[:count], self._draws[count:]
        return [Task(*fixed, number + more, self._poll_stop, index) for more, index in enumerate(indices)]

    def drawn_times(self, count: int) -> list[float]:
        """Return how long the next tasks last; nothing where times are not drawn."""
        if self._times is None:
            return []
        return self._times.of(self._worker, self._round, self._number, count)

    def advance(self, count: int) -> None:
        """Note that this many tasks have begun and are over."""
        self._number += count


class Desk:
    """One job at one worker: its problem, its tasks, and where their results are added up."""

    def __init__(
        self, job: int, settings: ClusterSettings, worker: int, n: int, poll_stop: Callable[[], bool]
    ) -> None:
        problem, times = settings.problem, settings.times
        self.job, self.problem, self._worker, self._n = job, problem, worker, n
        self.drawn = times is not None
        self.report_drawn = settings.report_drawn and self.drawn
        self.stoppable = times is None or times.stoppable
        self.computes = returns_values(problem)  # packed values, which are joined rather than added up
        self._values: list[Packed] = []  # of results not sent yet
        self.template = template_of(problem)
        self.total = np.empty_like(self.template)  # the sum of results not sent yet
        self.points, self.results = point_wire(problem, self.template), results_wire(problem, self.template)
        asked = poll_stop if self.stoppable else None
        self.tasks = TaskSequence(problem, worker, settings.seed, times, asked)

    def set_up(self) -> bool:
        """Do what must not count as time of a task, and return whether it drew from global generators.

        That is imports, data, compilation, and one untimed task.
        """
        set_up(self.problem, self._worker, self._n)
        before = global_states()
        self._abilities = ProblemAbilities.of(self.problem)  # its setup may have added some
        compute(self._abilities, first_point(self.problem), [self.tasks.first()])
        return global_states() != before

    def compute(self, x: Array, tasks: list[Task]) -> Array:
        """Return the sum of the results of tasks."""
        return compute(self._abilities, x, tasks, self.report_drawn)

    def joined(self, result: Packed, first: bool, due: bool) -> Packed:
        """Keep the packed results of a task, and join all that are kept if they are due."""
        if first:
            self._values.clear()
        self._values.append(result)
        return np.concatenate(self._values) if due else EMPTY


class Worker:
    """Carries out orders, one at a time, until the manager ends it.

    It works for one job, with these settings, or for all that the manager opens, which `build` describes.
    """

    def __init__(
        self,
        comm: MPI.Comm,
        settings: ClusterSettings | None,
        digest: bytes = b"",
        build: Callable[[int], ClusterSettings] | None = None,
    ) -> None:
        self._index, self._n = worker_of(comm.Get_rank()), workers_in(comm.Get_size())
        self._build, self._desks = build, dict[int, Desk]()  # by job
        self._later: list[Message] = []  # to open and close desks when this worker is idle
        self._job, self._order = 0, 0  # the one being carried out
        self._in_task = False  # whether a task has begun that is not done
        self._stop_asked = self._ended = self._final = False
        self.dismissed = False  # whether all ranks leave in order
        with meeting(comm):
            self._meet(comm, settings, digest)

    def _meet(self, comm: MPI.Comm, settings: ClusterSettings | None, digest: bytes) -> None:
        """Open what others connect to, and exchange addresses; the method of Ranks is its mirror."""
        rank, template, links = comm.Get_rank(), None, None
        hosts = [each.host for each in exchange_ranks(comm, settings.digest if settings else digest)]
        with opening(comm):
            self._bell = Doorbell(rank, hosts)
            if settings is not None:
                template = self._open(0, settings).template
                links = open_links(settings.exchange, template, hosts)
        doors, host = exchange_doors(comm, self._bell, links), hosts[MANAGER]
        manager = doors[MANAGER]
        with opening(comm):
            if links is not None:
                links.meet(rank, link_addresses(hosts, doors), manager.secret)
            if host == hosts[rank]:
                self._bell.share_flags(f"{manager.memory}-flags", len(hosts))
            self._ring = self._bell.ringer(manager.bell, manager.bell_address(host))
            self._shared = (
                None if template is None else shared_buffers(host, f"{manager.memory}-slots", template)
            )
            self._lifeline = Lifeline(manager.at(host, manager.lifelines), manager.secret, rank)
            self._channel = Channel(comm, MANAGER, template, end_without_manager)
            self._exchange = Passing(links, rank, self._send, self._poll_stop, self._wait_stop)
        comm.Gather(np.array([self._lifeline.connected], np.uint8), None, MANAGER)
        wait_to_begin(comm)

    def _open(self, job: int, settings: ClusterSettings) -> Desk:
        """Return the desk of a job that this worker will work for."""
        self._desk = Desk(job, settings, self._index, self._n, self._poll_stop)
        self._desks[job] = self._desk
        return self._desk

    def serve(self) -> bool:
        """Set up, carry out orders until the end, and return whether no further run follows."""
        with np.errstate(over="ignore", invalid="ignore"):  # the manager has the better message
            self._serve()
        return self._final

    def _serve(self) -> None:
        for desk in self._desks.values():
            self._set_up(desk)
        while not self._ended:
            message = self._later.pop(0) if self._later else self._bell.wait(self._channel.poll)
            if message is not None and message.kind == ORDER:
                self._carry_out(message)
            elif message is not None and message.kind == OPEN:
                self._open_later(message.job, message.payload)
            elif message is not None and message.kind == CLOSE:
                self._desks.pop(message.job, None)
                self._channel.buffers.pop(message.job, None)
            elif message is not None and message.kind == EVALUATE:
                self._evaluate(message)
            elif message is not None:
                self._obey(message)
        self._lifeline.release()
        self._send(END)
        self.dismissed = self._lifeline.dismissed()
        self._channel.close()
        self._bell.close()
        self._exchange.close()
        if self._shared is not None:
            self._shared.close()

    def _report_failure(self, error: Exception, tasks: int = 0, seconds: Sequence[float] = ()) -> None:
        flags = BAD_RESULT if isinstance(error, BadResultError) else 0
        why = str(error) if isinstance(error, RunError) else f"it failed: {describe_error(error)}"
        text = np.frombuffer(why.encode(errors=ENCODING_ERRORS), np.uint8)
        self._send(FAILED, self._order, 0, tasks, flags, seconds, text)

    def _set_up(self, desk: Desk) -> None:
        """Set up a job, and report whether that went well."""
        try:
            drew = desk.set_up()
        except Exception as error:
            self._report_failure(error)
            return
        if not self._bell.heard:
            self._bell.sleep(HEARING_SECONDS)  # the manager rings once, to find out who hears it
        flags = REACHABLE * self._bell.heard | SHARED * (self._shared is not None) | GLOBAL_RANDOM * drew
        self._send(READY, flags=flags)

    def _open_later(self, job: int, arrays: Payload) -> None:
        """Open a job that came to share the ranks, with the manager's values of its arrays beside x."""
        assert self._build is not None
        self._job = job
        try:
            desk = self._open(job, self._build(job))
            unpack_arrays(desk.problem, arrays)
        except Exception as error:
            self._report_failure(error)
            return
        self._channel.buffers[job] = BufferPool(desk.template)
        self._set_up(desk)

    def _carry_out(self, order: Message) -> None:
        """Carry out one order, until it is done or stopped, or fails."""
        self._order, self._stop_asked = order.order, False
        self._job, self._desk = order.job, self._desks[order.job]
        desk = self._desk
        desk.tasks.begin(order)
        self._exchange.begin(order)
        unsent: list[float] = []  # not list[float](), which costs 1 us
        began = time.perf_counter()
        try:
            desk.tasks.announce(order.tasks)
            x = self._point(order)
            if self._exchange.active and self._should_stop():
                self._send(STOPPED, order.order, seconds=[0.0])
            else:
                self._do_tasks(order, x, self._total_of(order), unsent)
        except Exception as error:
            desk.tasks.advance(self._in_task)
            tasks, spent = len(unsent) + self._in_task, time.perf_counter() - began
            self._report_failure(error, tasks=tasks, seconds=[spent])
        self._order = 0

    def _evaluate(self, order: Message) -> None:
        """Evaluate the parts from order.round to order.tasks."""
        self._order, found = order.order, list[float]()
        self._job, self._desk = order.job, self._desks[order.job]
        try:
            x = self._point(order)
            for part in range(order.round, order.tasks):
                found += evaluated_part(self._desk.problem, x, part)
            self._send(EVALUATED, order.order, payload=np.array(found, np.float64))
        except Exception as error:
            self._report_failure(error)
        self._order = 0

    def _do_tasks(self, order: Message, x: Array, total: Array, unsent: list[float]) -> None:
        """Do the tasks of an order; `unsent` are the seconds of those that are done but not sent."""
        left, together, desk = order.tasks, order.flags & TOGETHER, self._desk
        while left > 0:
            self._in_task, began = True, time.perf_counter()
            result, seconds = self._do(desk, x, left if together and desk.report_drawn else 1)
            self._in_task = False
            left -= len(seconds)
            # Finished work is sent at once: polling first may cost more than the task, since some
            # libraries let other ranks run first.
            if self._poll_stop() if left else self._should_stop():
                self._report_stopped(unsent, seconds, time.perf_counter() - began)
                break
            desk.tasks.advance(len(seconds))
            due = not (left and together)
            small = total.nbytes <= INLINE  # the manager checks those
            if desk.computes:
                total, fine = desk.joined(result, first=not unsent, due=due), True
            elif unsent or order.result_slot != NOWHERE or not due:
                fine = add_up(total, result, first=not unsent, last=due)
            else:  # it is sent as it is
                total, fine = result, small or surely_finite(result)
            unsent += seconds
            if due:
                if not (fine or small):
                    check_result(total, unsent, x, f"round {order.round}", math.inf)
                self._deliver(order, unsent, total)
                unsent.clear()

    def _point(self, order: Message) -> Array:
        """Return the point of an order, in this rank's own memory: a task may keep it."""
        x, buffers, points = order.payload, self._channel.buffers[order.job], self._desk.points
        if self._exchange.active and order.kind == ORDER:
            x = self._exchange.point(buffers.take())
        elif order.x_slot != NOWHERE and self._shared is not None:
            x = buffers.take()
            np.copyto(x, self._shared.at(order.x_slot))
        elif points and x.dtype == np.uint8:
            x = points.unpack(x, buffers.take())
        x.flags.writeable = False
        return x

    def _total_of(self, order: Message) -> Array:
        """Return the array in which the results of an order are added up."""
        if order.result_slot != NOWHERE and self._shared is not None:
            return self._shared.at(order.result_slot)
        return self._desk.total

    def _deliver(self, order: Message, seconds: list[float], total: Array) -> None:
        if self._exchange.active:
            self._exchange.deliver(seconds, total)
            return
        payload, results = EMPTY, self._desk.results
        if order.result_slot != NOWHERE:
            results.round(total)
        else:
            payload = results.pack(total) if results else total
        self._send(ARRIVAL, order.order, 0, len(seconds), 0, seconds, payload, NOWHERE, order.result_slot)

    def _do(self, desk: Desk, x: Array, count: int) -> tuple[Array, list[float]]:
        """Do tasks; where a law of times is given, they last as long as it says."""
        tasks = desk.tasks.take(count)
        began = time.perf_counter()
        result = desk.compute(x, tasks)
        if not desk.drawn:
            return result, [time.perf_counter() - began]
        drawn = desk.tasks.drawn_times(count)
        for end in [math.fsum(drawn)] if desk.stoppable else accumulate(drawn):
            if self._sleep_until(desk, began + end):
                break
        return result, drawn if desk.report_drawn else [time.perf_counter() - began]

    def _sleep_until(self, desk: Desk, end: float) -> bool:
        """Sleep to the end of a task, or until it is stopped, and return whether it was."""
        if desk.stoppable:
            return bool(self._bell.sleep_until(lambda: self._poll_stop() or None, until=end))
        time.sleep(max(end - time.perf_counter(), 0.0))
        return self._poll_stop()

    def _report_stopped(self, unsent: list[float], seconds: list[float], spent: float) -> None:
        """Report a stopped order: tasks done but not sent, and those begun within the time spent."""
        begun = 1 + sum(end <= spent for end in accumulate(seconds[:-1]))
        self._desk.tasks.advance(begun)
        whole = math.fsum(unsent) + spent
        self._send(STOPPED, self._order, tasks=len(unsent) + begun, seconds=[whole])

    def _poll_stop(self) -> bool:
        """Read a message, if there is one, and return whether the order is to be stopped."""
        if (message := self._channel.poll()) is not None:
            self._obey(message)
        return self._should_stop()

    def _wait_stop(self) -> bool:
        """Wait for the next message, and return whether the order is to be stopped."""
        if (message := self._bell.wait(self._channel.poll)) is not None:
            self._obey(message)
        return self._should_stop()

    def _should_stop(self) -> bool:
        return self._stop_asked or self._ended

    def _obey(self, message: Message) -> None:
        if message.kind == END:
            self._ended, self._final = True, bool(message.flags & FINAL)
        elif message.kind in (OPEN, CLOSE):
            self._later.append(message)
        elif message.kind == FALLBACK:
            self._exchange.fall_back(message, self._order)
        elif message.kind == NO_EXCHANGE:
            self._exchange.close()
        elif message.order == self._order:
            self._stop_asked = True
        else:  # it was done before the message came
            self._send(STOPPED, message.order, seconds=[0.0])

    def _send(self, kind: int, *fields: Any, **named: Any) -> None:
        """Send a message to the manager, with what Channel.send() takes, and wake it."""
        self._channel.send(MANAGER, kind, *fields, **named, job=self._job)  # type: ignore[misc]
        self._ring()
        if self._channel.sending():
            self._channel.flush()
