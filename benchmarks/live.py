"""What the live view costs the manager: its processor time per round, and its share of the whole run's.

python -m benchmarks.live; first in simulations, then on ranks whose tasks sleep.  The times are those of the
manager's processor alone, so a busy machine hardly changes them.
"""

import io
import os
import time

import mpi_ata
from benchmarks.measuring import on_ranks, options
from mpi_ata import Cluster, Constant, Method, Observer, Plain, Quadratic, Round, Sqrt, Stop, Trace, launch
from mpi_ata.job.schema import RunDescription
from mpi_ata.job.tables import Tables
from mpi_ata.view.live import RunView

SECONDS = 5.0  # that each run lasts
RANKS = 8  # workers on real ranks
TASK = 1e-3  # seconds that their tasks sleep


class Timed(Observer):
    """Adds up the processor time that another observer uses."""

    def __init__(self, observer: Observer) -> None:
        self._observer, self.seconds, self.spent = observer, 0.0, 0.0

    def on_start(self, method: Method, cluster: Cluster, trace: Trace) -> None:
        """Let the observer see the start."""
        self._began = time.process_time()
        self._observer.on_start(method, cluster, trace)

    def on_round(self, round: Round, trace: Trace) -> None:
        """Let the observer see a round, and take the time."""
        began = time.process_time()
        self._observer.on_round(round, trace)
        now = time.process_time()
        self.seconds += now - began
        self.spent = now - self._began  # of the whole run so far


def measure(workers: int, ranks: bool = False) -> str:
    """Return one row: what the view costs with this many workers; nothing on the rank of a worker."""
    terminal = io.StringIO()
    names = {"problem": "quadratic", "method": "sgd", "allocator": "ata-auto"}
    tables: Tables = {table: {"name": name} for table, name in names.items()}
    timed = Timed(RunView(RunDescription.of_tables(tables | {"stop": {"elapsed": SECONDS}}, {}), terminal))
    times = Constant(workers, scale=TASK) if ranks else Sqrt(workers)
    result = mpi_ata.minimize(
        Quadratic(10),
        32,
        update=Plain(0.1),
        stop=Stop(elapsed=SECONDS),
        times=times,
        observers=[timed],
        progress=False,
    )
    if result is None:
        return ""
    rounds, drawn = result.summary["rounds"], terminal.getvalue().count("quadratic, sgd, ata-auto on ")
    per_round = 1e6 * timed.seconds / rounds
    share = 100 * timed.seconds / timed.spent
    where = "ranks" if ranks else "simulated"
    return f"{where:>10} {workers:>8,} {rounds:>9,} {drawn:>8} {per_round:>15.2f} {share:>12.3f}"


def main() -> None:
    """Print the table; on ranks, its last row."""
    os.environ |= {"COLUMNS": "100", "LINES": "40", "TERM": "xterm", "MPI_ATA_TERMINAL": "1"}
    if launch.under_launcher():
        print(measure(RANKS, ranks=True), end="\n" if launch.rank() == 0 else "", flush=True)
        return
    options(__doc__)
    head = f"{'where':>10} {'workers':>8} {'rounds':>9} {'redraws':>8}"
    print(f"{head} {'us per round':>15} {'% of the run':>12}")
    for workers in (10, 1000, 100_000):
        print(measure(workers), flush=True)
    print(on_ranks(RANKS + 1, "benchmarks.live"), end="")


if __name__ == "__main__":
    main()
