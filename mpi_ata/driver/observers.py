"""Who looks on while a run is driven: progress lines, recorders, loggers."""

from mpi_ata.clusters import Cluster
from mpi_ata.driver.trace import Trace
from mpi_ata.methods import Method, Round


class Observer:
    """Looks on while a run is driven, on the manager; override what you need.

    `trace` has the totals so far: round, clock, elapsed, worker_time, loss, gap, evaluation, summary().
    """

    def on_start(self, method: Method, cluster: Cluster, trace: Trace) -> None:
        """Look at the run before its first round, or before it is continued."""

    def on_round(self, round: Round, trace: Trace) -> None:
        """Look at a round that has ended; where it was evaluated, `trace` has the results."""

    def on_end(self, trace: Trace, reason: str | None) -> None:
        """Look at the run after its last round; `reason` is the limit reached, None where it was stopped."""
