"""The connections of a manager and its workers, all in one process."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from mpi_ata.clusters.exchange.chain import receive_sum, send_point
from mpi_ata.clusters.exchange.links import Address, LinkBrokenError, Links
from mpi_ata.clusters.exchange.route import Route
from mpi_ata.launch import host_name


def patient(silent: float) -> None:
    """Give up after 10 seconds."""
    if silent > 10:
        raise LinkBrokenError("a test waits for 10 seconds")


def expect_no_sum(manager: Links, route: Route, size: int, threads: list[threading.Thread]) -> None:
    """Begin a round in which a worker leaves, and expect that all notice it at once."""
    send_point(manager, route, np.ones(size), patient)
    began = time.perf_counter()
    with pytest.raises(LinkBrokenError):
        receive_sum(manager, route, np.empty(size), patient)
    manager.disconnect()
    for thread in threads:
        thread.join(10)
    assert time.perf_counter() - began < 5  # not by the patience of those who wait


@contextmanager
def linked(count: int) -> Iterator[list[Links]]:
    """Yield the connections of this many ranks."""
    links = [Links() for _ in range(count)]
    for rank, own in enumerate(links):
        own.meet(rank, [Address(host_name(), other.port) for other in links], "secret")
    yield links
    for own in links:
        own.close()
