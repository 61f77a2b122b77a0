"""Data that each worker owns: samples cut into n parts, the i-th of which belongs to worker i."""

from mpi_ata.errors import RunError


def shard(size: int, worker: int, n: int) -> tuple[int, int]:
    """Return where the samples of a worker begin and end; the sizes of parts differ by at most one."""
    if not n:
        raise RunError("the number of workers is not known; call setup(worker, n) before the first task")
    if size < n:
        raise RunError(f"{size} samples cannot be divided among {n} workers; use at most {size} workers")
    return size * worker // n, size * (worker + 1) // n
