"""A task farm over unequal workers, beside mpi4py.futures and schwimmbad: the same items on the same ranks.

python -m benchmarks.farm [--repeats 3] [--items 120] [--json]

A worker of slowness s takes s times as long for each item, which cannot be interrupted: it sleeps, so that 4
workers fit on any machine.  Every repeat begins cold, without knowledge of the workers; the contenders take
turns.  Clock is from the call of map to its last result; worker time is the sum of the seconds that workers
spent on items, dropped ones included.  Nobody can beat the bound: all workers busy until the end, and nothing
done twice.  The second table is about equal workers and items: how much longer than the bound a call takes,
and how much of its core the manager uses, both per item.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from benchmarks import measuring
from mpi_ata.launch import rank, under_launcher
from mpi_ata.layout import worker_of
from mpi_ata.view.text import table

MEAN = 0.02  # seconds of an item on a worker of slowness 1
WORKERS = {"one slow": (1.0, 1.0, 1.0, 5.0), "two slow": (1.0, 1.0, 3.0, 10.0), "equal": (1.0,) * 4}
LENGTHS = ("equal", "unequal")
COSTS = {0.001: 1000, 0.01: 200, 0.1: 40}  # seconds of an item, and the number of items

Spent = tuple[float, float, float] | None  # clock, worker time, manager's CPU time; None on a worker's rank


class Row(NamedTuple):
    """What one contender needed in one repeat."""

    workers: str
    lengths: str
    who: str
    clock: float
    worker_time: float
    manager_time: float


def work(item: tuple[float, Sequence[float]]) -> float:
    """One item: return the seconds that it took on this worker."""
    seconds, slowness = item
    began = time.perf_counter()
    time.sleep(seconds * slowness[worker_of(rank())])
    return time.perf_counter() - began


def timed(call: Callable[..., Iterable[float]], items: list[Any]) -> tuple[float, float, float]:
    """Return clock, worker time and the CPU time of this process, of one call."""
    began, used = time.perf_counter(), time.process_time()
    spent = sum(call(work, items))
    return time.perf_counter() - began, spent, time.process_time() - used


def lengths(kind: str, items: int, seed: int) -> list[float]:
    """Return how long the items take on a worker of slowness 1; unequal ones are lognormal."""
    if kind == "equal":
        return [MEAN] * items
    draws: list[float] = np.random.default_rng(seed).lognormal(-0.125, 0.5, items).tolist()
    return [MEAN * draw for draw in draws]


def with_futures(seconds: list[float], slowness: Sequence[float], chunk: int = 1) -> Spent:
    """Return what MPICommExecutor.map needs; None on a worker's rank."""
    from mpi4py import MPI
    from mpi4py.futures import MPICommExecutor

    with MPICommExecutor(MPI.COMM_WORLD, root=0) as found:
        executor: Any = found  # an executor, or None on a worker's rank
        if executor is None:
            return None
        call = partial(executor.map, chunksize=chunk)
        return timed(call, [(each, slowness) for each in seconds])


def with_schwimmbad(seconds: list[float], slowness: Sequence[float]) -> Spent:
    """Return what schwimmbad.MPIPool.map needs; None on a worker's rank."""
    from mpi4py import MPI
    from schwimmbad import MPIPool

    try:
        pool: Any = MPIPool(MPI.COMM_WORLD.Dup())
    except SystemExit:  # of a worker, after it has served
        return None
    took = timed(pool.map, [(each, slowness) for each in seconds])
    pool.close()
    return took


def with_mpi_ata(seconds: list[float], slowness: Sequence[float]) -> Spent:
    """Return what cluster.map needs; None on a worker's rank."""
    from mpi_ata.clusters.farm import Items
    from mpi_ata.clusters.interface import ClusterSettings
    from mpi_ata.clusters.mpi.world import mpi_cluster

    with mpi_cluster(ClusterSettings(Items())) as cluster:
        if cluster is None:
            return None
        clock, spent, used = timed(cluster.map, [(each, slowness) for each in seconds])
    return clock, spent + float(cluster.ledger.stopped_time.sum()), used


CONTENDERS: dict[str, Callable[[list[float], Sequence[float]], Spent]] = {
    "mpi_ata": with_mpi_ata,
    "futures": with_futures,
    "futures, chunks of 4": partial(with_futures, chunk=4),
    **({"schwimmbad": with_schwimmbad} if find_spec("schwimmbad") else {}),
}


def on_ranks(repeats: int, items: int) -> None:
    """Let the contenders take turns on these ranks, and print a row for each turn, on the manager."""
    from benchmarks.farm import work as found  # by its name in the module, not in __main__

    globals()["work"] = found
    cases = [(name, kind, WORKERS[name]) for name in WORKERS for kind in LENGTHS]
    costs = [("equal", f"{1e3 * mean:g} ms", [mean] * count) for mean, count in COSTS.items()]
    for repeat in range(repeats):
        for name, kind, slowness in cases:
            take_turns(name, kind, lengths(kind, items, repeat), slowness)
        for name, kind, seconds in costs:
            take_turns(name, kind, seconds, WORKERS[name])


def take_turns(name: str, kind: str, seconds: list[float], slowness: Sequence[float]) -> None:
    """Let each contender do the same items, and print what they needed."""
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


def costs(rows: list[Row]) -> list[list[Any]]:
    """Return a line for each length of items and contender: microseconds per item, medians."""
    lines = []
    for mean, count in COSTS.items():
        for who in CONTENDERS:
            mine = [row for row in rows if row[:3] == ("equal", f"{1e3 * mean:g} ms", who)]
            bound = mean * count / len(WORKERS["equal"])
            columns = ([row.clock - bound for row in mine], [row.manager_time for row in mine])
            cost = [f"{1e6 * statistics.median(column) / count:,.0f}" for column in columns]
            lines.append([f"{1e3 * mean:g}", who, *cost])
    return lines


def main() -> None:
    """Print the tables."""
    asked = measuring.options(__doc__, repeats=3, items=120, json=False)
    if under_launcher():
        on_ranks(asked.repeats, asked.items)
        return
    rows = measured(asked.repeats, asked.items)
    header = ["workers and items", "contender", "clock [s]", "worker time [s]"]
    print(table(summary(rows, asked.items, asked.repeats), header))
    header = ["item [ms]", "contender", "clock beyond the bound [us]", "manager's CPU [us]"]
    print(f"\n{table(costs(rows), header)}")
    if asked.json:
        print(json.dumps([row._asdict() for row in rows]))


if __name__ == "__main__":
    main()
