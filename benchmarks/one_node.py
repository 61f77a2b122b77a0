"""What the chain costs on one node: processor seconds per round, by TCP and by shared memory.

python -m benchmarks.one_node (no MPI, no root; less than a minute).  Processor seconds depend less on the
other load of the machine than wall time does.
"""

import multiprocessing
import secrets
import time
from multiprocessing.synchronize import Barrier
from typing import Any, NamedTuple

import numpy as np

from mpi_ata.clusters.exchange.chain import Chain, receive_sum, send_point
from mpi_ata.clusters.exchange.links import Address, Links
from mpi_ata.clusters.exchange.node_memory import NodeMemory
from mpi_ata.clusters.exchange.route import Route
from mpi_ata.launch import host_name
from mpi_ata.layout import MANAGER
from mpi_ata.view.text import table

SIZE = 5_000_000  # numbers of 4 bytes
ROUNDS = 6  # of which the first one opens connections


class Case(NamedTuple):
    """Workers on one node."""

    workers: int
    shared: bool  # whether they are linked by shared memory, or by TCP
    name: str  # of that memory

    @property
    def route(self) -> Route:
        """The route through all workers."""
        ranks = tuple(range(1, self.workers + 1))
        return Route(0, ranks, followers=ranks[1:] if self.shared else ())


def take_part(case: Case, rank: int, ports: Any, together: Barrier, seconds: Any) -> None:
    """Take part in all rounds, and note the mean processor seconds of one."""
    links, route, x = Links(), case.route, np.ones(SIZE, np.float32)
    ports[rank] = links.port
    memory = NodeMemory(x, case.name, route.ranks, rank) if case.shared and rank != MANAGER else None
    together.wait()
    links.meet(rank, [Address(host_name(), port) for port in ports], "token")
    if memory is not None:
        memory.reserve()
    together.wait()
    if memory is not None:
        memory.map()
    for number in range(ROUNDS):
        together.wait()
        began = time.process_time()
        one_round(links, route, rank, x, memory)
        seconds[rank] += (time.process_time() - began) / (ROUNDS - 1) if number else 0.0
    together.wait()
    links.close()


def one_round(links: Links, route: Route, rank: int, x: Any, memory: NodeMemory | None) -> None:
    """Pass x on, and then the sum."""
    if rank == MANAGER:
        send_point(links, route, x, wait)
        receive_sum(links, route, x, wait)
        x[:] = 1
        return
    chain, own = Chain(links, route, rank, memory), x
    chain.pass_point(own, wait)
    chain.pass_sum(own, wait)


def wait(silent: float) -> None:
    """Do nothing while waiting for the others."""


def measured(case: Case) -> list[float]:
    """Return the processor seconds of each rank in a round."""
    size = case.workers + 1
    ports, seconds = multiprocessing.Array("i", size), multiprocessing.Array("d", size)
    together = multiprocessing.Barrier(size)
    ranks = [
        multiprocessing.Process(target=take_part, args=(case, rank, ports, together, seconds))
        for rank in range(size)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    return [seconds[rank] for rank in range(size)]


def main() -> None:
    """Measure both ways with several numbers of workers."""
    rows = []
    for workers in (2, 4, 8, 16):
        for shared in (False, True):
            found = measured(Case(workers, shared, f"mpi_ata-one-node-{secrets.token_hex(8)}"))
            way = "shared memory" if shared else "TCP"
            rows.append([workers, way, f"{sum(found):.3f}", f"{found[1]:.3f}"])
    print(f"x of {4 * SIZE / 1e6:g} MB; processor seconds per round\n")
    print(table(rows, ["workers", "linked by", "all ranks", "first worker"]))


if __name__ == "__main__":
    main()
