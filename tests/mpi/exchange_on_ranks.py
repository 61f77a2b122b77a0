"""Runs the same job by the star and by the chain on the ranks of one world; rank 0 prints JSON lines.

With a worker to kill: it dies in the middle of a round, either on its way to its first task of that round, or
after its own report.
"""

import json
import os
import signal
import sys
from hashlib import sha256
from typing import Any

import numpy as np

from mpi_ata.allocators import UTA
from mpi_ata.arrays import Array
from mpi_ata.clusters.exchange.chain import Chain
from mpi_ata.clusters.world import mpi_cluster, workers_in_world
from mpi_ata.methods import SGD
from mpi_ata.problems import Task
from mpi_ata.updates import Momentum

SIZE = 100_003  # numbers: several pieces, the last one short
ROUNDS = 6


class Noisy:
    """A quadratic with noise, whose sums depend on the order of additions."""

    def __init__(self, size: int = SIZE) -> None:
        self.x0: Array = np.linspace(-1, 1, size, dtype=np.float32)

    def gradient(self, x: Array, task: Task) -> Array:
        """Return the gradient with noise."""
        return x + task.rng.standard_normal(x.size, np.float32)


def run(exchange: str, rounds: int = ROUNDS) -> dict[str, Any] | None:
    """Return the final point and what was counted; None on a worker's rank."""
    problem = Noisy()
    method = SGD(problem.x0, UTA(workers_in_world(), budget=7, seed=3), Momentum(0.05))
    with mpi_cluster(problem, None, 11, False, b"", exchange=exchange) as cluster:
        if cluster is None:
            return None
        lost, used = list[int](), 0
        for _ in range(rounds):
            round = method.step(cluster)
            lost += [each.worker for each in round.losses]
            used += int(round.used.sum())
        digest = sha256(method.x.tobytes()).hexdigest()
        return {"x": digest, "norm": float(np.linalg.norm(method.x)), "used": used, "lost": lost}


def die_in(name: str, worker: int) -> None:
    """Let a worker kill itself when it does this in the third round, at the second piece or later."""
    own, calls = getattr(Chain, name), [0]

    def dying(self: Chain, array: Array, idle: Any) -> None:
        calls[0] += 1
        if calls[0] == 3:
            half = array.reshape(-1)[: array.size // 2]
            own(self, half, idle)
            os.kill(os.getpid(), signal.SIGKILL)
        own(self, array, idle)

    if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == str(worker + 1):
        setattr(Chain, name, dying)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        die_in(sys.argv[1], int(sys.argv[2]))
    ways = ["chain"] if len(sys.argv) > 1 else ["star", "chain"]
    for story in [run(way) for way in ways]:
        if story is not None:
            print(json.dumps(story), flush=True)
