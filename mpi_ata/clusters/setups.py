"""How long setting up a worker may take, judged by the others."""

import logging
import time

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
