"""What the live view costs the manager: its processor time per round, and its share of the whole run's.

python -m benchmarks.live; the times are those of this process alone, so a busy machine hardly changes them.
"""

import io
import os
import time

import mpi_ata
from mpi_ata import Cluster, Method, Observer, Plain, Quadratic, Round, Sqrt, Stop, Trace
from mpi_ata.view.live import LiveView

SECONDS = 5.0  # that each run lasts


class Timed(Observer):
    """Adds up the processor time that another observer uses."""

    def __init__(self, observer: Observer) -> None:
        self._observer, self.seconds = observer, 0.0

    def on_start(self, method: Method, cluster: Cluster, trace: Trace) -> None:
        """Let the observer see the start."""
        self._observer.on_start(method, cluster, trace)

    def on_round(self, round: Round, trace: Trace) -> None:
        """Let the observer see a round, and take the time."""
        began = time.process_time()
        self._observer.on_round(round, trace)
        self.seconds += time.process_time() - began


def measure(workers: int) -> str:
    """Return one row: what the view costs with this many workers."""
    terminal, stop = io.StringIO(), Stop(elapsed=SECONDS)
    timed = Timed(LiveView("quadratic, sgd, ata-auto", stop, terminal, terminal=True))
    began = time.process_time()
    result = mpi_ata.minimize(
        Quadratic(10), 32, update=Plain(0.1), stop=stop, times=Sqrt(workers), observers=[timed]
    )
    spent = time.process_time() - began
    assert result is not None
    rounds, drawn = result.summary["rounds"], terminal.getvalue().count("\x1b[J")
    per_round = 1e6 * timed.seconds / rounds
    return f"{workers:>8,} {rounds:>9,} {drawn:>8} {per_round:>15.2f} {100 * timed.seconds / spent:>12.3f}"


if __name__ == "__main__":
    os.environ |= {"COLUMNS": "100", "LINES": "40"}
    print(f"{'workers':>8} {'rounds':>9} {'redraws':>8} {'us per round':>15} {'% of the run':>12}")
    for workers in (10, 1000, 100_000):
        print(measure(workers), flush=True)
