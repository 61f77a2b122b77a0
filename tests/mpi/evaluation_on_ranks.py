"""Ranks that evaluate in parts: prints who evaluated which parts, and how long it took."""

import json
import sys
import time

import numpy as np

import mpi_ata
from mpi_ata.arrays import Array
from mpi_ata.driver.evaluation import evaluate_in_parts

PARTS = 20


class InParts(mpi_ata.Quadratic):
    """A problem that is evaluated in parts; its worker 0 may be slow or fail at that."""

    evaluation_parts = PARTS

    def __init__(self, mode: str) -> None:
        super().__init__(5000)  # x does not fit into a header
        self._mode, self._worker = mode, -1

    def setup(self, worker: int | None, n: int) -> None:
        """Note who this is."""
        self._worker = -1 if worker is None else worker

    def evaluate_part(self, x: Array, part: int) -> list[float]:
        """Return a number that depends on x and the part, the part, and who was asked."""
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
    """Evaluate before, after and between rounds."""
    problem = InParts(sys.argv[1])
    with mpi_ata.cluster(problem) as cluster:
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
