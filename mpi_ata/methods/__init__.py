"""What a round does with arrivals: one algorithm, one file."""

from collections.abc import Callable
from typing import Any

from mpi_ata.methods.interface import Method, Round
from mpi_ata.methods.sgd import SGD
from mpi_ata.methods.updates import UPDATES, Plain, Update

__all__ = ["METHODS", "SGD", "UPDATES", "Method", "Plain", "Round", "Update"]

METHODS: dict[str, Callable[..., Any]] = {"sgd": SGD}
