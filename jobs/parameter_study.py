"""A parameter study: a table of simulations at random parameters, B more rows per round.

Used by jobs/parameter_study.toml.  A task draws the parameters of an epidemic, simulates it and returns both;
combine() appends the rows to the table x, which is saved in the run file: mpi_ata.load("RUN.h5").x
"""

from collections.abc import Sequence

import numpy as np

from mpi_ata import Task, TaskResult
from mpi_ata.arrays import Array

Table = dict[str, Array]
COLUMNS = ("infection", "recovery", "peak", "day")


class Epidemic:
    """How many are ill at the peak of an epidemic, and when, by its rates of infection and recovery."""

    def __init__(self, days: int = 300, people: int = 10_000) -> None:
        if not (1 <= days <= 10_000 and 2 <= people <= 1_000_000_000):
            raise ValueError(f"{days=} or {people=} is out of range")
        self.days, self.people = days, people
        self.x0: Table = {name: np.zeros(0) for name in COLUMNS}

    def compute(self, x: Table, task: Task) -> dict[str, float]:
        """One task: one simulation, day by day, of random infections and recoveries."""
        infection, recovery = task.rng.uniform(0.1, 0.5), task.rng.uniform(0.02, 0.2)
        healthy, ill, course = self.people - 10, 10, [10]
        for _ in range(self.days):
            new = task.rng.binomial(healthy, 1 - np.exp(-infection * ill / self.people))
            recovered = task.rng.binomial(ill, 1 - np.exp(-recovery))
            healthy, ill = healthy - new, ill + new - recovered
            course.append(ill)
        values = (infection, recovery, max(course) / self.people, int(np.argmax(course)))
        return dict(zip(COLUMNS, values, strict=True))

    def combine(self, x: Table, results: Sequence[TaskResult]) -> Table:
        """Append a row for each task."""
        return {name: np.append(x[name], [result.value[name] for result in results]) for name in x}

    def evaluate(self, x: Table) -> dict[str, float]:
        """How many rows there are, and the mean of the peaks."""
        rows = len(x["peak"])
        return {"rows": rows, "mean_peak": x["peak"].mean() if rows else np.nan}
