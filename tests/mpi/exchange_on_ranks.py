"""Runs the same job by the star and by the chain on the ranks of one world; rank 0 prints JSON lines.

exchange_on_ranks.py star,chain, or one way and where which worker kills itself: chain pass_sum 2;
with HANG set it is stopped there instead.  After its `report`, it kills itself when its sum is passed on;
before an `order`, it is stopped.  With PER_HOST set, so many workers each pretend to be on a host of their
own, and rank 0 on another one.
"""

import json
import os
import signal
import sys
import threading
import time
from functools import partial
from hashlib import sha256
from itertools import count
from typing import Any

import numpy as np

from mpi_ata.allocators import UTA
from mpi_ata.arrays import Array, IntArray
from mpi_ata.clusters.interface import ClusterSettings
from mpi_ata.clusters.mpi.chain import Chain
from mpi_ata.clusters.mpi.links import Links
from mpi_ata.clusters.mpi.manager import MPICluster
from mpi_ata.clusters.mpi.world import mpi_cluster, workers_in_world
from mpi_ata.methods import SGD
from mpi_ata.problems import Task
from mpi_ata.updates import Momentum

SIZE = int(os.environ.get("SIZE", "100003"))  # numbers: several pieces, the last one short
ROUNDS = 6
BUDGET = int(os.environ.get("BUDGET", "7"))  # with fewer than workers, some are idle in turn


class Noisy:
    """A quadratic with noise, whose sums depend on the order of additions."""

    def __init__(self, size: int = SIZE) -> None:
        self.x0: Array = np.linspace(-1, 1, size, dtype=np.float32)

    def gradient(self, x: Array, task: Task) -> Array:
        """Return the gradient with noise."""
        return x + task.rng.standard_normal(x.size, np.float32)


def run(way: str, rounds: int = ROUNDS) -> dict[str, Any] | None:
    """Return the final point and what was counted; None on a worker's rank."""
    problem = Noisy()
    method = SGD(problem.x0, UTA(workers_in_world(), budget=BUDGET, seed=3), Momentum(0.05))
    with mpi_cluster(ClusterSettings(problem, seed=11, exchange=way)) as cluster:
        if cluster is None:
            return None
        lost, used = list[int](), 0
        for _ in range(rounds):
            round = method.step(cluster)
            lost += [each.worker for each in round.losses]
            used += int(round.used.sum())
        digest = sha256(method.x.tobytes() + method.state()["update.v"].tobytes()).hexdigest()
        return {"x": digest, "norm": float(np.linalg.norm(method.x)), "used": used, "lost": lost}


def rank() -> int:
    """Return the rank of this process."""
    return int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))


def die_after_report(worker: int) -> None:
    """Let a worker kill itself when its third sum is passed on, and the next one be busy for a second.

    Rank 0 looks at what has come LATE seconds after each order: at the loss, or at the sum too.
    """
    own, waited, calls, late = Noisy.gradient, MPICluster.wait_some, count(), float(os.environ["LATE"])

    def dying(self: Noisy, x: Array, task: Task) -> Array:
        if task.round == 3 and task.worker == worker and not next(calls):
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
        if task.round == 3 and task.worker == worker + 1:
            time.sleep(1)
        return own(self, x, task)

    def wait_late(self: MPICluster, tasks: int) -> Any:
        time.sleep(late)
        self._ranks.find_dead()
        return waited(self, tasks)

    setattr(Noisy, "gradient", dying)  # noqa: B010  (which types do not allow)
    setattr(MPICluster, "wait_some", wait_late)  # noqa: B010


def hang_before_order(worker: int) -> None:
    """Let a worker be stopped between rounds 3 and 4; orders have the indices of their tasks."""
    own, started, calls = Noisy.gradient, MPICluster.start, count()

    def stopping(self: Noisy, x: Array, task: Task) -> Array:
        if task.round == 3 and task.worker == worker and not next(calls):
            threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGSTOP)).start()
        return own(self, x, task)

    def start(self: MPICluster, workers: IntArray, x: Any, round: int, *more: Any, **named: Any) -> None:
        time.sleep(2.0 * (round == 4))
        started(self, workers, x, round, *more, **named)

    setattr(Noisy, "shares_draws", True)  # noqa: B010  (which types do not allow)
    setattr(Noisy, "gradient", stopping)  # noqa: B010
    setattr(MPICluster, "start", start)  # noqa: B010


def die_in(name: str, worker: int) -> None:
    """Let a worker kill itself in the middle of this, the third time it does it."""
    own, calls = getattr(Chain, name), count(1)

    def dying(self: Any, *arguments: Any) -> Any:
        if next(calls) == 3:
            die_at(self._links, transfer=int(os.environ.get("TRANSFER", "1")))
        return own(self, *arguments)

    if rank() == worker + 1:
        setattr(Chain, name, dying)


def die_at(links: Links, transfer: int) -> None:
    """Let a process kill itself at this transfer from now on."""
    transfers, own = count(), links._transfer

    def last(*arguments: Any) -> None:
        if next(transfers) == transfer:
            os.kill(os.getpid(), signal.SIGSTOP if "HANG" in os.environ else signal.SIGKILL)
        own(*arguments)

    vars(links)["_transfer"] = last


if __name__ == "__main__":
    ways, *death = sys.argv[1:]
    if "PER_HOST" in os.environ:  # addresses of this machine
        host = 2 + (rank() - 1) // int(os.environ["PER_HOST"]) if rank() else 1
        os.environ["SLURMD_NODENAME"] = f"127.0.0.{host}"  # by which a rank knows its host, if it is set
    if death:
        special = {"report": die_after_report, "order": hang_before_order}
        special.get(death[0], partial(die_in, death[0]))(int(death[1]))
    for story in [run(way) for way in ways.split(",")]:
        if story is not None:
            print(json.dumps(story), flush=True)
