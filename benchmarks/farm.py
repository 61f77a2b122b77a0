"""A task farm over unequal workers, compared with mpi4py.futures: the same items on the same ranks.

python -m benchmarks.farm [--repeats 5] [--items 120] [--json]

A worker of slowness s takes s times as long for each item, which cannot be interrupted: it sleeps, so that 4
workers fit on any machine.  Every repeat begins cold, without knowledge of the workers; the contenders take
turns.  Clock is from the call of map to its last result; worker time is the sum of the seconds that workers
spent on items, dropped ones included.  Nobody can beat the bound: all workers busy until the end, and nothing
done twice.
"""

import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks import measuring
from mpi_ata.launch import rank, under_launcher
from mpi_ata.layout import worker_of
from mpi_ata.view.text import table

MEAN = 0.02  # seconds of an item on a worker of slowness 1
WORKERS = {"one slow": (1.0, 1.0, 1.0, 5.0), "two slow": (1.0, 1.0, 3.0, 10.0), "equal": (1.0,) * 4}
LENGTHS = ("equal", "unequal")

Spent = tuple[float, float] | None  # clock and worker time; None on a worker's rank


class Row(NamedTuple):
    """What one contender needed in one repeat."""

    workers: str
    lengths: str
    who: str
    clock: float
    worker_time: float


def work(seconds: float, slowness: Sequence[float]) -> float:
    """One item: return the seconds that it took on this worker."""
    began = time.perf_counter()
    time.sleep(seconds * slowness[worker_of(rank())])
    return time.perf_counter() - began


def lengths(kind: str, items: int, seed: int) -> list[float]:
    """Return how long the items take on a worker of slowness 1; unequal ones are lognormal."""
    if kind == "equal":
        return [MEAN] * items
    draws: list[float] = np.random.default_rng(seed).lognormal(-0.125, 0.5, items).tolist()
    return [MEAN * draw for draw in draws]


def with_futures(seconds: list[float], slowness: Sequence[float], chunk: int = 1) -> Spent:
    """Return clock and worker time of MPICommExecutor.map; None on a worker's rank."""
    from mpi4py import MPI
    from mpi4py.futures import MPICommExecutor

    with MPICommExecutor(MPI.COMM_WORLD, root=0) as found:
        executor: Any = found  # an executor, or None on a worker's rank
        if executor is None:
            return None
        began = time.perf_counter()
        spent = list(executor.map(work, seconds, [slowness] * len(seconds), chunksize=chunk))
        return time.perf_counter() - began, sum(spent)


def with_mpi_ata(seconds: list[float], slowness: Sequence[float]) -> Spent:
    """Return clock and worker time of cluster.map; None on a worker's rank."""
    from mpi_ata.clusters.farm import Items
    from mpi_ata.clusters.interface import ClusterSettings
    from mpi_ata.clusters.mpi.world import mpi_cluster

    with mpi_cluster(ClusterSettings(Items())) as cluster:
        if cluster is None:
            return None
        began = time.perf_counter()
        spent = list(cluster.map(work, seconds, [slowness] * len(seconds)))
        clock = time.perf_counter() - began
    return clock, sum(spent) + float(cluster.ledger.stopped_time.sum())


CONTENDERS: dict[str, Callable[[list[float], Sequence[float]], Spent]] = {
    "mpi_ata": with_mpi_ata,
    "futures": with_futures,
    "futures, chunks of 4": partial(with_futures, chunk=4),
}


def on_ranks(repeats: int, items: int) -> None:
    """Let the contenders take turns on these ranks, and print a row for each turn, on the manager."""
    from benchmarks.farm import work as found  # by its name in the module, not in __main__

    globals()["work"] = found
    for name, slowness in WORKERS.items():
        for kind in LENGTHS:
            for repeat in range(repeats):
                seconds = lengths(kind, items, repeat)
                for who in CONTENDERS:
                    if took := CONTENDERS[who](seconds, slowness):
                        print(json.dumps(Row(name, kind, who, *took)), flush=True)


def measured(repeats: int, items: int) -> list[Row]:
    """Start the ranks, and return what they print."""
    printed = measuring.on_ranks(5, "benchmarks.farm", repeats=repeats, items=items)
    return [Row(*json.loads(line)) for line in printed.splitlines()]


def summary(rows: list[Row], items: int, repeats: int) -> list[list[Any]]:
    """Return a line for each case and contender, with medians over the repeats."""
    lines = []
    for name, slowness in WORKERS.items():
        for kind in LENGTHS:
            total = statistics.median(sum(lengths(kind, items, repeat)) for repeat in range(repeats))
            bound = total / sum(1 / s for s in slowness)
            lines.append([f"{name}, {kind} items", "bound", f"{bound:.3f}", ""])
            for who in CONTENDERS:
                mine = [row for row in rows if row[:3] == (name, kind, who)]
                columns = ([row.clock for row in mine], [row.worker_time for row in mine])
                lines.append(["", who, *(f"{statistics.median(column):.3f}" for column in columns)])
    return lines


def main() -> None:
    """Print the table."""
    asked = measuring.options(__doc__, repeats=5, items=120, json=False)
    if under_launcher():
        on_ranks(asked.repeats, asked.items)
        return
    rows = measured(asked.repeats, asked.items)
    header = ["workers and items", "contender", "clock [s]", "worker time [s]"]
    print(table(summary(rows, asked.items, asked.repeats), header))
    if asked.json:
        print(json.dumps([row._asdict() for row in rows]))


if __name__ == "__main__":
    main()
