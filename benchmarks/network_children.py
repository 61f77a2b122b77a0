"""One way to exchange x and gradients on limited links, started by benchmarks.namespaces; rank 0 prints JSON.

As root: python -m benchmarks.network_children --ways star,chain --workers 4 --megabytes 5 --megabits 100
"""

import argparse
import json
import logging
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.namespaces import Hosts
from mpi_ata import SGD, UTA, Plain, Task
from mpi_ata.arrays import Array
from mpi_ata.methods.replicated_sgd import ReplicatedSGD

ROUNDS = 6  # of which the first one opens connections
Measured = dict[str, float]


class Null:
    """A problem whose tasks cost nothing, so that a round takes as long as its messages."""

    def __init__(self, size: int) -> None:
        self.x0: Array = np.ones(size, np.float32)
        self._answer = np.ones(size, np.float32)

    def gradient(self, x: Array, task: Task) -> Array:
        """Return an array that is there already."""
        return self._answer


def ours(way: str, size: int) -> Measured | None:
    """Measure rounds of SGD in which every worker has one task."""
    from mpi_ata.clusters.world import mpi_cluster, workers_in_world

    problem, n = Null(size), workers_in_world()
    kind = ReplicatedSGD if way == "replicated" else SGD
    method = kind(problem.x0, UTA(n, budget=n), Plain(1e-3))
    exchange, update = ("chain", method.update) if kind is ReplicatedSGD else (way, None)
    with mpi_cluster(problem, None, 0, False, b"", exchange=exchange, update=update) as cluster:
        return None if cluster is None else timed(lambda: method.step(cluster))


def gloo(size: int) -> Measured | None:
    """Measure the all-reduce of torch.distributed among all ranks but rank 0."""
    import torch
    import torch.distributed as dist
    from mpi4py import MPI

    rank, ranks = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    host = MPI.COMM_WORLD.bcast(__import__("socket").gethostname())
    dist.init_process_group("gloo", f"tcp://{host}:29511", rank=rank, world_size=ranks)
    workers, x = dist.new_group(list(range(1, ranks))), torch.ones(size)
    found = timed(lambda: dist.all_reduce(x, group=workers)) if rank else None
    MPI.COMM_WORLD.Barrier()
    return found if rank == 1 else None


def timed(step: Callable[[], object]) -> Measured:
    """Return the median seconds of a round, and the bytes through this host's network card."""
    seconds, card = list[float](), list[int]()
    for _ in range(ROUNDS):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
        card.append(transmitted())
    rounds = ROUNDS - 1
    return {"seconds": statistics.median(seconds[1:]), "megabytes": (card[-1] - card[0]) / rounds / 1e6}


def transmitted() -> int:
    """Return the bytes that went through this host's network card so far, in both directions."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    counts = [line.split(":")[1].split() for line in lines if line.strip().startswith("eth0:")]
    return sum(int(count[0]) + int(count[8]) for count in counts)


def rank(way: str, size: int) -> None:
    """Measure one way on the ranks of this world."""
    logging.getLogger("mpi_ata").setLevel(logging.ERROR)
    found = gloo(size) if way == "gloo" else ours(way, size)
    if found is not None:
        print(json.dumps(found), flush=True)


def main() -> None:
    """Start ranks on hosts of their own for one way after another, and print what they measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ways", default="star,chain")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--megabytes", type=float, default=5.0)
    parser.add_argument("--megabits", type=float, default=100.0)
    parser.add_argument("--prefix", default="node")
    parser.add_argument("--rank", action="store_true", help="this is a rank")
    options = parser.parse_args()
    size = int(options.megabytes * 1e6 / 4)
    if options.rank:
        rank(options.ways, size)
        return
    with Hosts(options.workers + 1, options.megabits, options.prefix) as hosts:
        for way in options.ways.split(","):
            own = ["--rank", "--ways", way, "--megabytes", str(options.megabytes)]
            out = hosts.run([sys.executable, "-m", __spec__.name, *own], options.workers + 1)
            found = json.loads(out.splitlines()[-1])
            print(f"{way:12} {found['seconds']:7.3f} s {found['megabytes']:7.1f} MB", flush=True)


if __name__ == "__main__":
    main()
