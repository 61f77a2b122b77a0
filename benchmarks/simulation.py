"""Rounds per second of simulated SGD on one core, and where the time goes.

python -m benchmarks.simulation
"""

import time
from collections.abc import Callable

from benchmarks.measuring import best, options
from mpi_ata import (
    ATA,
    GTA,
    OFTA,
    SGD,
    UTA,
    ATAEmpirical,
    DrawnTimes,
    Plain,
    Quadratic,
    Sqrt,
    Stop,
    VirtualCluster,
    run,
)
from mpi_ata.allocators import Allocator
from mpi_ata.view.text import table

BUDGET, ROUNDS = 23, 500
GOALS = {"ata": 2000, "gta": 1000}  # at n = 459


class Timed:
    """Adds up the seconds spent in some methods of an object."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def wrap(self, owner: object, *names: str) -> None:
        """Measure these methods from now on."""
        for name in names:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, method: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            began = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - began

        return call


def parts(name: str, n: int) -> tuple[Quadratic, Allocator, VirtualCluster, SGD]:
    """Return the parts of a new run of the paper's quadratic."""
    problem, times = Quadratic(dimension=100, noise=0.01), DrawnTimes(Sqrt(n), seed=1)
    allocators: dict[str, Callable[[], Allocator]] = {
        "ata": lambda: ATA(n, BUDGET, alpha=4 * 29 * n**0.5),
        "ata-empirical": lambda: ATAEmpirical(n, BUDGET),
        "gta": lambda: GTA(n, BUDGET),
        "uta": lambda: UTA(n, BUDGET),
        "ofta": lambda: OFTA(n, BUDGET, times.means),
    }
    allocator = allocators[name]()
    return problem, allocator, VirtualCluster(problem, times, seed=1), SGD(problem.x0, allocator, Plain(0.44))


def measure(name: str, n: int, rounds: int) -> list[str]:
    """Return rounds per second, and the shares of gradients, decisions, and the rest of the cluster."""

    def go(problem: Quadratic, cluster: VirtualCluster, method: SGD) -> None:
        for _ in run(method, cluster, problem, Stop(rounds=rounds)):
            pass

    def fresh() -> None:
        problem, _, cluster, method = parts(name, n)
        go(problem, cluster, method)

    seconds = best(fresh, seconds=3.0)
    problem, allocator, cluster, method = parts(name, n)
    gradients, decisions, simulation = Timed(), Timed(), Timed()
    gradients.wrap(problem, "gradient", "gradients")
    decisions.wrap(allocator, "allocate", "observe")
    simulation.wrap(cluster, "start", "wait_some", "stop")
    began = time.perf_counter()
    go(problem, cluster, method)
    whole = time.perf_counter() - began
    shares = [gradients.seconds, decisions.seconds, simulation.seconds - gradients.seconds]
    goal = f"{GOALS[name]:,}" if n == 459 and name in GOALS else ""
    return [
        name,
        f"{n:,}",
        f"{rounds / seconds:,.0f}",
        goal,
        *(f"{100 * share / whole:.0f} %" for share in shares),
    ]


def main() -> None:
    """Print the table."""
    options(__doc__)
    header = ["allocator", "n", "rounds/s", "goal", "gradients", "decisions", "cluster"]
    rows = [measure(name, 459, ROUNDS) for name in ("ata", "ata-empirical", "gta", "uta", "ofta")]
    rows += [measure(name, n, ROUNDS) for n in (17, 51) for name in ("ata", "gta")]
    rows += [measure(name, 100_000, 20) for name in ("ata", "gta")]
    print(table(rows, header))


if __name__ == "__main__":
    main()
