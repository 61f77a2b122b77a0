"""The end of a cluster: workers leave, or are given up on, and the accounts are settled."""

import time

import numpy as np

from mpi_ata.clusters.channel import END, FAILED, FINAL, Message
from mpi_ata.clusters.failures import plausible_seconds
from mpi_ata.clusters.pool import WorkerPool
from mpi_ata.clusters.reception import Reception
from mpi_ata.launch.signals import GraceExpired

GRACE = 2.0  # seconds that workers get to leave when a run has failed
LEAVING = 10.0  # and when it has not, those that have nothing to do


class Shutdown:
    """Lets the workers of a pool leave, once."""

    def __init__(self, pool: WorkerPool, reception: Reception) -> None:
        self._pool, self._connections, self._reception = pool, pool.connections, reception
        self.closed = False  # whether all have left, or are given up on
        self.ended_for_good = False  # whether no further run can follow on these ranks

    def close(self) -> None:
        """Stop everyone, let the workers leave, and settle the accounts; late ones are not waited for."""
        self._stop_everyone()
        try:
            left = self._leave(time.perf_counter() + max(self._pool.longest_stop(), LEAVING), final=False)
        except GraceExpired:
            left = False
        if not left:
            self._give_up_on_workers(0)

    def abort(self, code: int) -> None:
        """End a run early; if a worker does not leave in time, all ranks are ended with this exit code."""
        self._pool.grace_expired = lambda: False
        self._stop_everyone()
        if not self._leave(time.perf_counter() + GRACE, final=True):
            self._give_up_on_workers(code)

    def _stop_everyone(self) -> None:
        self._reception.drop_reports()
        self._pool.orders.withdraw_all(np.arange(self._pool.n))

    def _give_up_on_workers(self, code: int) -> None:
        """Stop waiting for workers: those still there are ended, and what they were doing is lost."""
        pool = self._pool
        for worker in pool.staying:
            pool.ledger.lose(worker, int(pool.orders.drop(worker)))
        self._connections.end_stragglers(pool.staying, code)
        pool.staying.clear()
        self.ended_for_good = self.closed = True

    def _leave(self, until: float, final: bool) -> bool:
        """Let the workers leave and return whether all did in time; `final` if no further run follows."""
        if self.closed:
            return True
        pool, soon = self._pool, min(until, time.perf_counter() + GRACE)
        for worker in pool.staying:
            self._connections.send(worker, END, flags=FINAL if final else 0)
        while pool.staying:
            message = self._connections.next_message(until, pool.grace_expired)
            if message is not None:
                self._account_for(message)
            elif time.perf_counter() >= (until if self._answers_expected() else soon):
                return False
        self._connections.close()
        self.ended_for_good, self.closed = final or bool(self._connections.dead), True
        return True

    def _account_for(self, message: Message) -> None:
        worker = self._pool.worker_of[message.sender]
        if message.kind == END:
            self._pool.staying.discard(worker)
        elif message.kind == FAILED:
            self._pool.ledger.stop(worker, message.tasks, plausible_seconds(message))
        else:
            self._reception.handle(message)

    def _answers_expected(self) -> bool:
        """Return whether some worker has not left and is not known to be overdue."""
        pool = self._pool
        return any(pool.available[worker] or not pool.orders.is_busy(worker) for worker in pool.staying)
