"""Setting up the workers, and how long that may take, judged by the others."""

import logging
import time

from mpi_ata.clusters.channel import READY
from mpi_ata.clusters.interface import set_up
from mpi_ata.clusters.pool import WorkerPool
from mpi_ata.clusters.reception import Reception
from mpi_ata.errors import RunError

log = logging.getLogger("mpi_ata")
FLOOR = 30.0  # seconds: the first worker may find data in a cache that others have to read


class SetUps:
    """The times at which workers were ready."""

    def __init__(self, factor: float) -> None:
        self._factor = factor  # times the longest setup so far; 0: wait forever
        self._began = time.perf_counter()
        self._longest = 0.0
        self._warned = False

    def elapsed(self) -> float:
        """Return the seconds since setup began."""
        return time.perf_counter() - self._began

    def note(self, ready: bool) -> None:
        """Note that a worker is ready now."""
        if ready:
            self._longest = self.elapsed()

    def late(self, waiting: list[int]) -> bool:
        """Return whether these workers, which are not ready, have taken too long."""
        if self.elapsed() > FLOOR and not self._warned:
            self._warned = True
            log.warning("workers %s are not set up after %.0f s", waiting, FLOOR)
        if not self._longest or not self._factor:
            return False
        return self.elapsed() > max(self._factor * self._longest, FLOOR)


def set_up_all(pool: WorkerPool, reception: Reception) -> None:
    """Set up manager and workers, before the clock starts; some workers may be late."""
    pool.connections.check_same_job()
    for ring in pool.connections.ring:
        ring()
    times = SetUps(pool.health.policy.deadline)
    set_up(pool.problem, None, pool.n)
    while waiting := sorted(pool.setting_up & set(pool.available.nonzero()[0].tolist())):
        message = pool.connections.next_message(expired=pool.grace_expired)
        if message is not None:
            pool.note(reception.handle(message))
            times.note(message.kind == READY)
        elif times.late(waiting):
            for worker in waiting:
                pool.suspect(worker, times.elapsed(), 0)
            break
    if not pool.available.any():
        raise RunError(f"no worker is left: {pool.found[-1].why}")
