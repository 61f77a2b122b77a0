"""What the tests of all allocators need."""

import numpy as np

from mpi_ata.allocators import Allocator
from mpi_ata.arrays import BoolArray


def everyone(allocator: Allocator) -> BoolArray:
    return np.ones(allocator.n, np.bool_)
