"""Evaluation between rounds by the workers that are free, or else by the manager."""

import time
from functools import partial

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.clusters.channel import Message
from mpi_ata.clusters.evaluation import PartialEvaluation
from mpi_ata.clusters.interface import evaluated_part
from mpi_ata.clusters.pool import FLOOR, WorkerPool
from mpi_ata.clusters.reception import Reception

SHORTEST = 1e-9  # seconds of a task, to compare speeds
STOPPING = 1.0  # seconds for which an evaluation waits for workers that are being stopped


class Evaluator:
    """Evaluates a pool's problem in parts."""

    def __init__(self, pool: WorkerPool, reception: Reception) -> None:
        self._pool, self._connections, self._reception = pool, pool.connections, reception
        self._part_seconds = 0.0  # the longest that a part of an evaluation has taken

    def evaluate(self, x: Array, parts: range) -> list[float]:
        """Return what problem.evaluate_part(x, part) returns for these parts, in order.

        Free workers do it; the manager does what they are too late with, and everything if orders run.
        """
        pool, here = self._pool, partial(evaluated_part, self._pool.problem, x)
        # Results that arrive while orders run belong to wait().
        free = [] if pool.orders.running else sorted(self._wait_for_stops())
        if not free:
            return [value for part in parts for value in here(part)]
        work = PartialEvaluation(self._connections, pool.orders.sharing, x, self._part_seconds)
        work.divide(parts, free, 1 / np.maximum(pool.ledger.stats.pooled_means()[free], SHORTEST))
        while work.missing():
            self._account_for(self._connections.next_message(expired=pool.grace_expired), work)
            pool.check_anyone()
            work.redo(pool.free())
            if work.overdue(pool.health.deadlines.factor, FLOOR):
                work.do_missing(here)
        self._part_seconds = work.longest
        return work.results()

    def _wait_for_stops(self) -> set[int]:
        """Return the free workers, after all that were stopped have confirmed, or a second has passed.

        If all are still busy then, wait for the first one until it is overdue.
        """
        pool, now = self._pool, time.perf_counter
        soon = now() + STOPPING
        last = max(soon, now() + pool.longest_stop())
        while not (free := pool.free()) or pool.orders.stopping:
            pool.check_anyone()
            if now() >= (until := soon if free else last):
                break
            self._account_for(self._connections.next_message(until, pool.grace_expired))
        return free

    def _account_for(self, message: Message | None, work: PartialEvaluation | None = None) -> None:
        """Process a message that comes between two rounds."""
        if message is None:
            return
        worker = self._pool.worker_of[message.sender]
        if work is None or not work.take(worker, message, self._pool.name(worker)):
            self._pool.note(self._reception.handle(message))
