"""A problem that knows how many of its tasks were really done in this process."""

from collections.abc import Sequence

from mpi_ata import Quadratic, Task
from mpi_ata.arrays import Array


class Counting(Quadratic):
    """The quadratic, with a count of its tasks; the untimed one before the first round does not count."""

    def __init__(self, dimension: int = 100) -> None:
        super().__init__(dimension)
        self.calls = 0

    def gradient(self, x: Array, task: Task) -> Array:
        self.calls += task.round > 0
        return super().gradient(x, task)

    def gradients(self, x: Array, tasks: Sequence[Task]) -> Array:
        total = self.gradient(x, tasks[0])
        for task in tasks[1:]:
            total += self.gradient(x, task)
        return total
