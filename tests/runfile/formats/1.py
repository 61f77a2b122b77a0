"""A problem with a figure of its own."""

from mpi_ata import Quadratic
from mpi_ata.arrays import Array


class Told(Quadratic):
    """The quadratic, and how far its point is from 0."""

    def evaluate(self, x: Array) -> dict[str, float]:
        """A figure beside the loss."""
        return {"distance": float((x @ x) ** 0.5)}
