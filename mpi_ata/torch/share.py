"""What one rank does in a round: its micro-batches, how long they took, and their losses."""

import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from mpi_ata.arrays import Array, IntArray
from mpi_ata.torch.devices import import_torch

FIELDS = 5  # numbers with which each row begins: those of ShareReport but for the seconds


class ShareReport(NamedTuple):
    """What a rank reports of its share of a round."""

    done: int  # micro-batches
    weight: float
    losses: int  # that were logged
    loss: float  # their sum
    unused: bool  # whether it has parameters without a gradient, though it has done micro-batches
    seconds: list[float]  # of each micro-batch

    def row(self) -> list[float]:
        """Return the report as numbers."""
        done, weight, losses, loss, unused, seconds = self
        return [done, weight, losses, loss, unused, *seconds]


def reports(rows: Array) -> list[ShareReport]:
    """Return the reports of all ranks."""
    return [_report(row) for row in rows.tolist()]


def _report(row: list[float]) -> ShareReport:
    done, weight, losses, loss, unused = row[:FIELDS]
    return ShareReport(int(done), weight, int(losses), loss, bool(unused), row[FIELDS : FIELDS + int(done)])


class Share:
    """The micro-batches of this rank in one round; the first one of a process is `cold`, and takes longer."""

    def __init__(self, quota: IntArray, rank: int, cold: bool = False) -> None:
        self.quota, self.began, self._cold = quota, time.perf_counter(), cold
        self.before, self.count = int(quota[:rank].sum()), int(quota[rank])
        self._seconds: list[float] = []
        self._losses: list[Any] = []

    @property
    def width(self) -> int:
        """Return how many numbers the longest report of this round has."""
        return FIELDS + int(self.quota.max())

    def timed(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield batches, and note how long each takes, from fetching it to the end of the loop's body."""
        began = time.perf_counter()
        for batch in batches:
            yield batch
            _wait_for_gpu()
            now = time.perf_counter()
            self._seconds.append(now - began)
            began = now

    def log(self, loss: Any) -> None:
        """Note the loss of a micro-batch; the device need not be waited for yet."""
        self._losses.append(loss.detach() if hasattr(loss, "detach") else loss)

    def report(self, weight: float | None, unused: bool) -> ShareReport:
        """Return what the other ranks need to know."""
        done, losses = len(self._seconds), [float(loss) for loss in self._losses]
        own = float(done) if weight is None else float(weight)
        return ShareReport(done, own, len(losses), sum(losses), unused and done > 0, self._usual_seconds())

    def _usual_seconds(self) -> list[float]:
        """Return the seconds of each micro-batch, as if the cold one had taken as long as the others."""
        if not self._cold or len(self._seconds) < 2:
            return self._seconds
        others = self._seconds[1:]
        return [sum(others) / len(others), *others]


def _wait_for_gpu() -> None:
    """Wait until the GPU of this process is done, since a micro-batch is not done before that."""
    cuda = import_torch().cuda
    if cuda.is_initialized():
        cuda.synchronize()
