"""Ranks that evaluate in parts: prints who evaluated which parts, and how long it took; -1 is the manager."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import mpi_ata
from mpi_ata.arrays import Array
from mpi_ata.driver.evaluation import evaluate_in_parts

PARTS = 20
HANG = 12.0  # seconds


class InParts(mpi_ata.Quadratic):
    """A problem that is evaluated in parts; worker 0 may be slow or fail at that, and all may hang or die."""

    evaluation_parts = PARTS

    def __init__(self, mode: str) -> None:
        super().__init__(5000)  # x does not fit into a header
        self._mode, self._worker, self._calls = mode, -1, 0

    def setup(self, worker: int | None, n: int) -> None:
        """Note who this is."""
        self._worker = -1 if worker is None else worker

    def gradient(self, x: Array, task: mpi_ata.Task) -> Array:
        """Return the gradient, unless it is time to die."""
        if self._mode == "dying" and task.round == 2:
            time.sleep(0.5)
            os._exit(1)
        return super().gradient(x, task)

    def evaluate_part(self, x: Array, part: int) -> list[float]:
        """Return a number that depends on x and the part, the part, and who was asked."""
        self._calls += 1
        if self._worker >= 0 and self._mode == "hanging" and self._calls == PARTS + 1:
            time.sleep(HANG)
        if self._worker == 0 and self._mode == "slow":
            time.sleep(4)
        if self._worker == 0 and self._mode == "failing":
            raise ValueError(f"no part {part}")
        return [float(x[part]), part, self._worker]

    def combine_parts(self, x: Array, numbers: list[float]) -> dict[str, float]:
        """Return the sum over all parts, and print who did which."""
        table = np.reshape(numbers, (PARTS, 3))
        print(json.dumps(table[:, 1:].astype(int).tolist()))
        return {"loss": float(table[:, 0].sum())}


def main() -> None:
    """Evaluate in the way that was asked for."""
    mode = sys.argv[1]
    problem = InParts(mode)
    with mpi_ata.cluster(problem) as cluster:
        {"dying": all_die, "hanging": all_hang, "running": while_orders_run}.get(mode, usual)(
            problem, cluster
        )


def all_die(problem: InParts, cluster: Any) -> None:
    """Let all workers die in tasks that were stopped."""
    everyone = np.arange(cluster.n)
    cluster.start(everyone, problem.x0, 2)
    time.sleep(0.2)
    cluster.stop(everyone)
    try:
        evaluate_in_parts(problem, problem.x0, cluster)
    except mpi_ata.RunError as error:
        Path(sys.argv[2]).write_text(str(error))  # mpirun may drop what is printed after a death


def all_hang(problem: InParts, cluster: Any) -> None:
    """Evaluate twice on one worker, which hangs in its second evaluation."""
    for _ in range(2):
        began = time.perf_counter()
        evaluate_in_parts(problem, problem.x0, cluster)
    print(json.dumps(time.perf_counter() - began))


def while_orders_run(problem: InParts, cluster: Any) -> None:
    """Evaluate between rounds of a method that never stops; print the tasks delivered and used."""
    method, used = mpi_ata.Ringmaster(problem.x0, cluster.n, mpi_ata.Plain(0.1), 4, 6), 0
    for _ in range(20):
        used += int(method.step(cluster).used.sum())
        time.sleep(0.01)  # so that results come in before the evaluation ends
        evaluate_in_parts(problem, method.x, cluster)
    print(json.dumps([int(cluster.ledger.stats.state()["tasks"].sum()), used]))


def usual(problem: InParts, cluster: Any) -> None:
    """Evaluate before, after and between rounds."""
    x = np.arange(5000.0)
    began = time.perf_counter()
    assert evaluate_in_parts(problem, x, cluster) == {"loss": x[:PARTS].sum()}
    print(json.dumps(time.perf_counter() - began))
    method = mpi_ata.SGD(problem.x0, mpi_ata.GTA(cluster.n, 4), mpi_ata.Plain(0.1))
    for _ in range(3):
        used = method.step(cluster).used
        assert used.sum() == 4
        assert evaluate_in_parts(problem, method.x, cluster) == {"loss": method.x[:PARTS].sum()}


if __name__ == "__main__":
    main()
