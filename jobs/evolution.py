"""An evolution strategy, for a loss that has no gradient.

Used by jobs/evolution.toml.  The loss is the share of points on the wrong side of a plane: it is piecewise
constant, so its gradient is 0 wherever it exists.  A task tries one random plane and returns it and its loss;
combine() moves mean and spread of the next generation toward the best of this one.
"""

from collections.abc import Sequence

import numpy as np

from mpi_ata import Task, TaskResult
from mpi_ata.arrays import Array

Generation = dict[str, Array]


class WrongSide:
    """Separates two clouds of points by a plane, given by its normal and its offset."""

    def __init__(self, dimension: int = 10, points: int = 2000, best: float = 0.25) -> None:
        if not (1 <= dimension <= 1000 and 1 <= points <= 1_000_000 and 0 < best <= 1):
            raise ValueError(f"{dimension=}, {points=} or {best=} is out of range")
        rng = np.random.default_rng(1)
        self.label = np.where(rng.random(points) < 0.5, -1.0, 1.0)
        self.t = rng.standard_normal((points, dimension)) + 1.5 / np.sqrt(dimension) * self.label[:, None]
        self.x0 = {"mean": rng.standard_normal(dimension + 1), "spread": np.ones(dimension + 1)}
        self.best = best  # the part of a generation that the next one follows

    def compute(self, x: Generation, task: Task) -> tuple[float, Array]:
        """One task: a plane of this generation, and its loss."""
        plane = x["mean"] + x["spread"] * task.rng.standard_normal(len(x["mean"]))
        return self._wrong(plane), plane

    def combine(self, x: Generation, results: Sequence[TaskResult]) -> Generation:
        """Move mean and spread toward those of the best planes."""
        ranked = sorted((result.value for result in results), key=lambda value: value[0])
        best = np.array([plane for _, plane in ranked[: max(2, round(self.best * len(ranked)))]])
        return {"mean": (x["mean"] + best.mean(axis=0)) / 2, "spread": (x["spread"] + best.std(axis=0)) / 2}

    def loss(self, x: Generation) -> float:
        """The share of points on the wrong side of the mean plane."""
        return self._wrong(x["mean"])

    def _wrong(self, plane: Array) -> float:
        return float(np.mean((self.t @ plane[:-1] + plane[-1]) * self.label <= 0))
