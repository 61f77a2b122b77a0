"""Workers whose tasks fail or whose results cannot be used: what is booked, and who is suspended."""

import math
import time

from mpi_ata.clusters.channel import BAD_RESULT, Message
from mpi_ata.clusters.interface import Lost
from mpi_ata.clusters.orders import Order
from mpi_ata.clusters.pool import WorkerPool
from mpi_ata.errors import BadResultError, RunError


class Failures:
    """Handles what workers report as failed, and what the manager rejects."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool, self._orders, self._ledger, self._health = pool, pool.orders, pool.ledger, pool.health

    def fail(self, worker: int, message: Message) -> Lost | None:
        """Handle a failed task or setup."""
        if worker in self._pool.setting_up:
            return self._fail_set_up(worker, message)
        self._ledger.stop(worker, message.tasks, plausible_seconds(message))
        order = self._orders.running.get(worker)
        if order is not None and order.number == message.order:
            del self._orders.running[worker]
            self._orders.give_back_draws(worker)
        lost = self.report(worker, message, (order or self._orders.stopping[worker]).round)
        if lost is not None:
            self._orders.withdraw(worker)
        return lost

    def _fail_set_up(self, worker: int, message: Message) -> Lost:
        """End the run because of a failed setup, unless the run no longer waits for it."""
        why = message.payload.tobytes().decode()
        if self._pool.available[worker]:
            raise RunError(self._pool.placed(worker, why))
        return self._health.died(worker, 0, why)

    def reject(self, worker: int, order: Order, message: Message, error: BadResultError) -> Lost | None:
        """Reject results that cannot be used."""
        order.left -= message.tasks
        seconds = min(plausible_seconds(message), time.perf_counter() - order.sent)
        self._ledger.stop(worker, message.tasks, seconds)
        self._orders.withdraw(worker)
        return self.judge(worker, message.tasks, error, order.round)

    def report(self, worker: int, message: Message, round: int) -> Lost | None:
        """Judge a worker by what it reports itself."""
        error = BadResultError if message.flags & BAD_RESULT else RunError
        return self.judge(worker, message.tasks, error(message.payload.tobytes().decode()), round)

    def judge(self, worker: int, tasks: int, error: RunError, round: int) -> Lost | None:
        """Suspend or exclude a worker that failed; if that ends the run, say where it failed."""
        judge = self._health.bad_result if isinstance(error, BadResultError) else self._health.failed
        try:
            return judge(worker, tasks, error, round)
        except RunError as fatal:
            raise RunError(self._pool.placed(worker, str(fatal))) from None


def plausible_seconds(message: Message) -> float:
    """Return the seconds in a message about unused tasks; times that cannot be true count as 0."""
    seconds = math.fsum(message.seconds)
    return seconds if 0.0 <= seconds < math.inf else 0.0
