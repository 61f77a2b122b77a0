"""Observers of a run in progress: progress lines, live views, loggers."""

import logging
from collections.abc import Callable, Iterable

from mpi_ata.clusters import Cluster
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import one_line
from mpi_ata.methods import Method, Round

log = logging.getLogger("mpi_ata")


class Observer:
    """Watches a run in progress, on the manager; override the hooks you need.

    `trace` has the totals so far: round, clock, elapsed, worker_time, loss, gap, evaluation, summary().
    """

    def on_start(self, method: Method, cluster: Cluster, trace: Trace) -> None:
        """Look at the run before its first round, or before it is resumed."""

    def on_round(self, round: Round, trace: Trace) -> None:
        """Look at a round that has ended; where it was evaluated, `trace` has the results."""

    def on_end(self, trace: Trace, reason: str | None) -> None:
        """Look at the run after its last round; `reason` is the limit reached, None where it ended early."""


class Observers(Observer):
    """Calls several observers; one that fails is reported and left out, and the run continues."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = list(observers)
        self._started = False

    def on_start(self, method: Method, cluster: Cluster, trace: Trace) -> None:
        """Call on_start of all."""
        self._started = True
        self._call(lambda observer: observer.on_start(method, cluster, trace))

    def on_round(self, round: Round, trace: Trace) -> None:
        """Call on_round of all."""
        self._call(lambda observer: observer.on_round(round, trace))

    def on_end(self, trace: Trace, reason: str | None) -> None:
        """Call on_end of all, unless the run failed before it started."""
        if self._started:
            self._call(lambda observer: observer.on_end(trace, reason))

    def _call(self, hook: Callable[[Observer], None]) -> None:
        for observer in tuple(self._observers):
            try:
                hook(observer)
            except Exception as error:
                self._observers.remove(observer)
                what = f"{type(error).__name__}: {one_line(error)}"
                log.warning("the observer %s failed and is left out: %s", type(observer).__name__, what)
