"""What the user should know about a run that has ended."""

import logging
import math

from mpi_ata.clusters import Cluster
from mpi_ata.driver.observers import Observer
from mpi_ata.driver.trace import Trace
from mpi_ata.methods import Method

log = logging.getLogger("mpi_ata")
ENOUGH = 300  # orders: the first ones may wait for code to be loaded


class ExchangeAdvice(Observer):
    """Logs at the end of a run that exchanging orders and results took longer than the tasks themselves."""

    def on_start(self, method: Method, cluster: Cluster, trace: Trace) -> None:
        """Remember whose accounts to look at."""
        self._stats = cluster.ledger.stats

    def on_end(self, trace: Trace, reason: str | None) -> None:
        """Look at the mean order of all workers."""
        sums = self._stats.state()
        orders = int(sums["arrivals"].sum())
        overhead, seconds = (math.fsum(sums[name]) / max(orders, 1) for name in ("overhead", "seconds"))
        if orders >= ENOUGH and overhead > seconds:
            log.warning(
                "exchanging an order took %.3g ms, but its tasks only %.3g ms: let each task do more, "
                "or use a larger budget",
                1e3 * overhead,
                1e3 * seconds,
            )
