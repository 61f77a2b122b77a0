"""Small messages among the ranks of torch.distributed: numbers and texts in main memory, never pickled."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from mpi_ata.arrays import Array, IntArray
from mpi_ata.errors import UsageError
from mpi_ata.torch.devices import import_torch

NOT_INITIALISED = (
    "there is no process group of torch.distributed: call torch.distributed.init_process_group() first, and "
    "start the script with torchrun or mpirun"
)

FAILED = -1  # instead of counts
SPEAKING = 1.0  # seconds that rank 0 has to say what is wrong: launchers end all when the first one ends


class RankGroup:
    """The ranks of torch.distributed; whatever a rank does here, all must do."""

    def __init__(self) -> None:
        self._torch, distributed = import_torch(), import_torch().distributed
        if not distributed.is_available() or not distributed.is_initialized():
            raise UsageError(NOT_INITIALISED)
        self._distributed = distributed
        self.rank, self.n = distributed.get_rank(), distributed.get_world_size()
        # Other backends may move only what is on a GPU, and do not notice a rank that has died.
        self._group = None if distributed.get_backend() == "gloo" else distributed.new_group(backend="gloo")

    def gather(self, numbers: Sequence[float], width: int) -> Array:
        """Return the numbers of all ranks, one row each, padded with zeros to this width."""
        own = self._torch.zeros(width, dtype=self._torch.float64)
        own[: len(numbers)] = self._torch.tensor(numbers, dtype=self._torch.float64)
        everyone: Array = self._gather(own).numpy()
        return everyone

    def gather_texts(self, text: str) -> list[str]:
        """Return the texts of all ranks."""
        data = text.encode()
        longest = int(self.gather([len(data)], 1).max())
        own = self._torch.tensor(list(data.ljust(longest, b"\0")), dtype=self._torch.uint8)
        return [row.tobytes().rstrip(b"\0").decode() for row in self._gather(own).numpy()]

    def _gather(self, own: Any) -> Any:
        everyone = own.new_empty((self.n, len(own)))
        self._distributed.all_gather(list(everyone.unbind()), own, group=self._group)
        return everyone

    def from_rank_0(self, decide: Callable[[], IntArray], width: int) -> IntArray:
        """Return the counts that rank 0 decides on; if it fails, it says why, and all ranks end."""
        message, failure = self._torch.zeros(width, dtype=self._torch.int64), None
        if self.rank == 0:
            try:
                message[:] = self._torch.from_numpy(decide())
            except Exception as error:
                message[:], failure = FAILED, error
        self._distributed.broadcast(message, 0, group=self._group)
        if failure is not None:
            raise failure
        if width and message[0] == FAILED:
            time.sleep(SPEAKING)
            sys.exit(2)
        received: IntArray = message.numpy()
        return received

    def any_of(self, flags: Sequence[bool]) -> list[bool]:
        """Return which of these flags are true on any rank."""
        message = self._torch.tensor(flags, dtype=self._torch.uint8)
        self._distributed.all_reduce(message, self._distributed.ReduceOp.MAX, group=self._group)
        return [bool(flag) for flag in message.tolist()]
