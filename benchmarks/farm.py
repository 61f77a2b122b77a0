"""A task farm over unequal workers, compared with mpi4py.futures: the same items on the same ranks.

python -m benchmarks.farm [--repeats 5] [--items 120] [--json]

A worker of slowness s takes s times as long for each item, which cannot be interrupted: it sleeps, so that 4
workers fit on any machine.  Every repeat begins cold, without knowledge of the workers; the contenders take
turns.  Clock is from the call of map to its last result; worker time is the sum of the seconds that workers
spent on items, dropped ones included.  Nobody can beat the bound: all workers busy until the end, and nothing
done twice.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpi_ata.launch import find_mpirun, rank, set_mpi_defaults
from mpi_ata.layout import worker_of
from mpi_ata.view.text import table

ROOT = Path(__file__).resolve().parent.parent
MEAN = 0.02  # seconds of an item on a worker of slowness 1
WORKERS = {"one slow": (1.0, 1.0, 1.0, 5.0), "two slow": (1.0, 1.0, 3.0, 10.0), "equal": (1.0,) * 4}
LENGTHS = ("equal", "unequal")
CONTENDERS = ("mpi_ata", "futures", "futures, chunks of 4")


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


def with_futures(seconds: list[float], slowness: Sequence[float], chunk: int) -> tuple[float, float] | None:
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


def with_mpi_ata(seconds: list[float], slowness: Sequence[float]) -> tuple[float, float] | None:
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


def on_ranks(repeats: int, items: int) -> None:
    """Let the contenders take turns on these ranks, and print a row for each turn, on the manager."""
    from benchmarks.farm import work as found  # by its name in the module, not in __main__

    globals()["work"] = found
    for name, slowness in WORKERS.items():
        for kind in LENGTHS:
            for repeat in range(repeats):
                seconds = lengths(kind, items, repeat)
                for who in CONTENDERS:
                    chunk = 4 if "4" in who else 1
                    took = (
                        with_mpi_ata(seconds, slowness)
                        if who == "mpi_ata"
                        else with_futures(seconds, slowness, chunk)
                    )
                    if took is not None:
                        print(json.dumps(Row(name, kind, who, *took)), flush=True)


def measured(repeats: int, items: int) -> list[Row]:
    """Start the ranks, and return what they print."""
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
    set_mpi_defaults(environment)
    command = [find_mpirun(), "-n", "5", sys.executable, "-m", "benchmarks.farm", "--on-ranks"]
    command += ["--repeats", str(repeats), "--items", str(items)]
    done = subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return [Row(*json.loads(line)) for line in done.stdout.splitlines()]


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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--items", type=int, default=120)
    parser.add_argument("--json", action="store_true", help="print each measurement")
    parser.add_argument("--on-ranks", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.on_ranks:
        on_ranks(chosen.repeats, chosen.items)
        return
    rows = measured(chosen.repeats, chosen.items)
    header = ["workers and items", "contender", "clock [s]", "worker time [s]"]
    print(table(summary(rows, chosen.items, chosen.repeats), header))
    if chosen.json:
        print(json.dumps([row._asdict() for row in rows]))


if __name__ == "__main__":
    main()
