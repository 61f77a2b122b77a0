"""Data of one's own for each worker: samples cut into n parts, the i-th of which is worker i's."""

from mpi_ata.errors import RunError


def shard(size: int, worker: int, n: int) -> tuple[int, int]:
    """Where the samples of a worker begin and end; no part has more than one sample more than another."""
    if not n:
        raise RunError("whose samples are they? Call setup(worker, n) before the first task")
    if size < n:
        raise RunError(f"{size} samples cannot be shared out among {n} workers; use at most {size} workers")
    return size * worker // n, size * (worker + 1) // n
