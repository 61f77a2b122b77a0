"""The connections of a manager and its workers, all in one process."""

from collections.abc import Iterator
from contextlib import contextmanager

from mpi_ata.clusters.exchange.links import Address, LinkBrokenError, Links
from mpi_ata.launch import host_name


def patient(silent: float) -> None:
    """Give up after 10 seconds."""
    if silent > 10:
        raise LinkBrokenError("a test waits for 10 seconds")


@contextmanager
def linked(count: int) -> Iterator[list[Links]]:
    """Yield the connections of this many ranks."""
    links = [Links() for _ in range(count)]
    for rank, own in enumerate(links):
        own.meet(rank, [Address(host_name(), other.port) for other in links], "secret")
    yield links
    for own in links:
        own.close()
