"""The energy of a node, reported to the manager by the first of its ranks."""

import time
from collections.abc import Callable

from mpi_ata.clusters.handshake import Rank, first_ranks
from mpi_ata.launch.energy import EnergyMeter

PERIOD = 60.0  # seconds between two reports


class NodeMeter:
    """Reports the joules that a node has used so far."""

    def __init__(self, meter: EnergyMeter, report: Callable[[float], None]) -> None:
        self._meter, self._report = meter, report
        self._next = 0.0

    def report(self) -> None:
        """Report now."""
        self._report(self._meter.joules())
        self._next = time.monotonic() + PERIOD

    def report_if_due(self) -> None:
        """Report, unless the latest report is recent."""
        if time.monotonic() >= self._next:
            self.report()


def node_meter(rank: int, ranks: list[Rank], report: Callable[[float], None]) -> NodeMeter | None:
    """Return the meter of this rank's node, if this is its first rank and its energy is known."""
    if rank not in first_ranks(ranks):
        return None
    meter = EnergyMeter()
    return NodeMeter(meter, report) if meter.known else None
