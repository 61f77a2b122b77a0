"""One way to exchange x and gradients among hosts, measured on the ranks that benchmarks.network starts.

Rank 0 prints the seconds of a round, and the megabytes through its network card, as JSON.
"""

import json
import logging
import socket
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from mpi4py.futures import MPICommExecutor

from benchmarks.measuring import options
from benchmarks.namespaces import transmitted
from benchmarks.network import ROUNDS
from mpi_ata import SGD, UTA, Plain, Task
from mpi_ata.arrays import Array
from mpi_ata.clusters.interface import ClusterSettings
from mpi_ata.clusters.mpi.world import mpi_cluster, workers_in_world

PORT = 29511
CARD = "eth0"
Measured = dict[str, float]
Step = Callable[[], object]


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
    problem, n = Null(size), workers_in_world()
    method = SGD(problem.x0, UTA(n, budget=n), Plain(1e-3))
    with mpi_cluster(ClusterSettings(problem, exchange=way)) as cluster:
        return None if cluster is None else timed(lambda: method.step(cluster))


def collectives(size: int) -> Measured | None:
    """Measure Bcast and Reduce of the MPI library."""
    world = MPI.COMM_WORLD
    x, total = np.ones(size, np.float32), np.empty(size, np.float32)

    def step() -> None:
        world.Bcast(x)
        world.Reduce(x, total if world.Get_rank() == 0 else None)

    found = timed(step)
    return found if world.Get_rank() == 0 else None


def futures(size: int) -> Measured | None:
    """Measure mpi4py.futures: x is an argument, results are arrays."""
    x, n = np.ones(size, np.float32), MPI.COMM_WORLD.Get_size() - 1
    with MPICommExecutor() as opened:
        executor: Any = opened
        return None if executor is None else timed(lambda: sum(executor.map(np.positive, [x] * n)))


def among_workers(step_of: Callable[[Any, Any], Step]) -> Measured | None:
    """Measure a step of torch.distributed among all ranks but rank 0."""
    import torch.distributed as dist

    world = MPI.COMM_WORLD
    rank, ranks, host = world.Get_rank(), world.Get_size(), world.bcast(socket.gethostname())
    dist.init_process_group("gloo", f"tcp://{host}:{PORT}", rank=rank, world_size=ranks)
    group = dist.new_group(list(range(1, ranks)))
    before = transmitted(CARD)
    found = world.gather(timed(step_of(dist, group)) if rank else None)
    if found is None:
        return None
    return {"seconds": found[1]["seconds"], "megabytes": (transmitted(CARD) - before) / ROUNDS / 1e6}


def gloo(size: int) -> Measured | None:
    """Measure the all-reduce of gloo, without x."""

    def step_of(dist: Any, group: Any) -> Step:
        import torch

        x = torch.ones(size)
        return lambda: dist.all_reduce(x, group=group)

    return among_workers(step_of)


def ddp(size: int) -> Measured | None:
    """Measure a backward pass and a step of a DDP model with one parameter."""

    def step_of(dist: Any, group: Any) -> Step:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        model = DistributedDataParallel(torch.nn.Linear(size, 1, bias=False), process_group=group)
        optimizer, inputs = torch.optim.SGD(model.parameters(), lr=1e-3), torch.ones(1, size)

        def step() -> None:
            optimizer.zero_grad()
            model(inputs).sum().backward()
            optimizer.step()

        return step

    return among_workers(step_of)


WAYS: dict[str, Callable[[int], Measured | None]] = {
    "star": lambda size: ours("star", size),
    "chain": lambda size: ours("chain", size),
    "collectives": collectives,
    "futures": futures,
    "gloo": gloo,
    "ddp": ddp,
}


def timed(step: Step) -> Measured:
    """Return the median seconds of a round, and the megabytes through this host's network card."""
    seconds, card = list[float](), list[int]()
    for _ in range(ROUNDS):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
        card.append(transmitted(CARD))
    megabytes = (card[-1] - card[0]) / (ROUNDS - 1) / 1e6
    return {"seconds": statistics.median(seconds[1:]), "megabytes": megabytes}


def main() -> None:
    """Measure one way on the ranks of this world."""
    asked = options(__doc__, "way", "size", way="", size=0)  # numbers in x, of 4 bytes each
    logging.getLogger("mpi_ata").setLevel(logging.ERROR)
    found = WAYS[asked.way](asked.size)
    if found is not None:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
