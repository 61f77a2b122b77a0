"""The worker's side of the MPI cluster: the mirror of mpi.py."""

import math
import time
from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.clusters.buffers import NOWHERE, SharedBufferPool
from mpi_ata.clusters.channel import (
    ARRIVAL,
    END,
    FAILED,
    ORDER,
    READY,
    STOPPED,
    Channel,
    Message,
)
from mpi_ata.clusters.doorbell import HEARING, Doorbell
from mpi_ata.clusters.handshake import handshake, shared_buffers
from mpi_ata.clusters.interface import compute, set_up
from mpi_ata.errors import RunError
from mpi_ata.problems import Problem, Task, task_streams
from mpi_ata.times import DrawnTimes

if TYPE_CHECKING:
    from mpi4py import MPI

MANAGER = 0


class Worker:
    """Carries out orders, one at a time, until the manager ends it."""

    def __init__(
        self,
        comm: "MPI.Comm",
        problem: Problem,
        times: DrawnTimes | None = None,
        seed: int = 0,
        report_drawn: bool = False,
        digest: bytes = b"",
    ) -> None:
        self._problem, self._times, self._streams = problem, times, task_streams(seed)
        self._report_drawn = report_drawn and times is not None
        self._index, self._n = comm.Get_rank() - 1, comm.Get_size() - 1
        self._bell = Doorbell()
        template = problem.x0
        manager = handshake(comm, self._bell, digest)[MANAGER]
        self._ring = self._bell.ringer(manager.host, manager.bell, manager.port)
        self._shared: SharedBufferPool | None = shared_buffers(manager.host, manager.bell, template)
        comm.Barrier()  # now everyone has opened what is shared
        self._channel = Channel(comm, MANAGER, template)
        self._total = np.empty_like(template)  # what is not sent yet
        self._order = 0  # the one being carried out
        self._round, self._number = -1, 0  # of the next task
        self._withdrawn = self._ended = self._for_good = False

    def serve(self) -> bool:
        """Set up, then carry out orders until the end; whether that is for good."""
        with np.errstate(over="ignore", invalid="ignore"):  # the manager says it better
            self._serve()
        return self._for_good

    def _serve(self) -> None:
        self._guarded(self._set_up)
        while not self._ended:
            message = self._bell.wait(self._channel.poll)
            if message is not None and message.kind == ORDER:
                self._guarded(self._carry_out, message)
            elif message is not None:
                self._obey(message)
        self._send(END)
        self._channel.close()
        self._bell.close()
        if self._shared is not None:
            self._shared.close()

    def _guarded(self, action: Callable[..., None], *given: Message) -> None:
        try:
            action(*given)
        except RunError as error:
            self._send(FAILED, payload=np.frombuffer(str(error).encode(), np.uint8))

    def _set_up(self) -> None:
        """Everything that must not be taken for the time of a task: imports, data, compilation, one task."""
        set_up(self._problem, self._index, self._n)
        compute(self._problem, self._problem.x0, [Task(self._streams, 0, self._index, 0)])
        self._bell.sleep(HEARING)  # the manager rings once, to see who hears it
        self._send(READY, tasks=self._bell.heard, together=self._shared is not None)

    def _carry_out(self, order: Message) -> None:
        """Do the tasks of one order, until all are done or it is withdrawn."""
        x, total = self._point(order), self._place(order)
        if order.round != self._round:
            self._round, self._number = order.round, 0
        self._order, self._withdrawn, left = order.order, False, order.tasks
        unsent = list[float]()
        while left > 0:
            began = time.perf_counter()
            result, seconds = self._do(x, left if order.together and self._report_drawn else 1)
            left -= len(seconds)
            # What is done is sent at once: a look in between may cost more than the task, since some
            # libraries let other ranks run first.
            if self._look() if left else self._given_up():
                self._stopped(unsent, seconds, time.perf_counter() - began)
                break
            self._number += len(seconds)
            due = not (left and order.together)
            if unsent:
                np.add(total, result, out=total)
            elif order.result_slot != NOWHERE or not due:
                np.copyto(total, result)
            else:  # it goes as it is
                total = result
            unsent += seconds
            if due:
                self._deliver(order, unsent, total)
                unsent = []
        self._order = 0

    def _point(self, order: Message) -> Array:
        """The point of an order, in memory of our own: a task may keep it."""
        x = order.payload
        if order.slot != NOWHERE and self._shared is not None:
            x = self._channel.room.take()
            np.copyto(x, self._shared.at(order.slot))
        x.flags.writeable = False
        return x

    def _place(self, order: Message) -> Array:
        """Where results of an order are added up."""
        if order.result_slot != NOWHERE and self._shared is not None:
            return self._shared.at(order.result_slot)
        return self._total

    def _deliver(self, order: Message, seconds: list[float], total: Array) -> None:
        count = len(seconds)
        if order.result_slot == NOWHERE:
            self._send(ARRIVAL, order.order, tasks=count, seconds=seconds, payload=total)
        else:
            self._send(ARRIVAL, order.order, tasks=count, seconds=seconds, slot=order.result_slot)

    def _do(self, x: Array, count: int) -> tuple[Array, list[float]]:
        """Do tasks, and let them last as long as the law of times says, where there is one."""
        numbers = range(self._number, self._number + count)
        tasks = [Task(self._streams, self._round, self._index, number, self._look) for number in numbers]
        began = time.perf_counter()
        result = compute(self._problem, x, tasks, at_once=self._report_drawn)
        if self._times is None:
            return result, [time.perf_counter() - began]
        drawn = self._times.of(self._index, self._round, self._number, count)
        self._bell.sleep_until(lambda: self._look() or None, until=began + math.fsum(drawn))
        return result, drawn if self._report_drawn else [time.perf_counter() - began]

    def _stopped(self, unsent: list[float], seconds: list[float], spent: float) -> None:
        """Account for a withdrawn order: tasks done but not sent, and those begun within the time spent."""
        begun = 1 + sum(end <= spent for end in accumulate(seconds[:-1]))
        self._number += begun
        whole = math.fsum(unsent) + spent
        self._send(STOPPED, self._order, tasks=len(unsent) + begun, seconds=[whole])

    def _look(self) -> bool:
        """Whether the order being carried out has been withdrawn."""
        if (message := self._channel.poll()) is not None:
            self._obey(message)
        return self._given_up()

    def _given_up(self) -> bool:
        return self._withdrawn or self._ended

    def _obey(self, message: Message) -> None:
        if message.kind == END:
            self._ended, self._for_good = True, message.together
        elif message.order == self._order:
            self._withdrawn = True
        else:  # done before the word to stop came
            self._send(STOPPED, message.order, seconds=[0.0])

    def _send(self, kind: int, order: int = 0, **content: Any) -> None:
        self._channel.send(MANAGER, kind, order, **content)
        self._ring()
        self._channel.flush()
