"""Sends messages of many sizes to its own rank, and asserts that they arrive as they were."""

from collections import deque

import numpy as np
from mpi4py import MPI

from mpi_ata.arrays import Array
from mpi_ata.clusters.mpi import channel
from mpi_ata.clusters.mpi.library import is_loss

channel.PIECE = 1000  # so that pieces are many, and the last one is shorter


def send_messages() -> None:
    """Send messages of many sizes."""
    for dtype in (np.float32, np.float64):
        for size in (1, 504, 512, 513, 1030, 10_000):
            template: Array = np.zeros((1, size), dtype)
            template += np.linspace(0, 1, size)
            box = channel.Channel(MPI.COMM_SELF, 0, template)
            for count in (0, 1, 511, 512, 513, 3000):
                seconds = np.linspace(0.1, 0.2, count).tolist()
                box.send(0, channel.ARRIVAL, 7, 1 << 40, count, channel.TOGETHER, seconds, template, 3, 4)
                message = read(box)
                assert message[:8] == (0, channel.ARRIVAL, 7, 1 << 40, count, 3, 4, channel.TOGETHER)
                assert message.seconds == seconds
                assert message.payload.dtype == template.dtype
                assert message.payload.tolist() == template.tolist()
                assert not message.indices
                box.flush()
                indices = list(range(1 << 40, (1 << 40) + count))
                box.send(0, channel.ORDER, payload=template, indices=indices)
                message = read(box)
                assert (list(message.indices), message.seconds) == (indices, [])
                assert message.payload.tolist() == template.tolist()
                box.flush()
            box.send(0, channel.FAILED, payload=np.frombuffer(b"why", np.uint8))
            message = read(box)
            assert (message.payload.tobytes(), message.flags) == (b"why", 0)
            box.close()


def read(box: channel.Channel) -> channel.Message:
    """Return the next message."""
    while (message := box.poll()) is None:
        pass
    return message


def send_to_the_dead() -> None:
    """Send a message that cannot be sent before somebody receives it."""
    large: Array = np.ones(1_000_000)
    for dead in ((), (0,)):
        box = channel.Channel(MPI.COMM_SELF, 0, large, dead=dead)
        box.send(0, channel.ARRIVAL, 7, payload=large)
        assert box.sending() == (not dead)
        assert read(box).payload.tolist() == large.tolist()
        box.close()


class Failed:
    """The request for what a dead rank has not sent: Test() raises an error once, and is then true."""

    def __init__(self) -> None:
        self._tested = False

    def Test(self) -> bool:  # noqa: N802
        """Return whether it is complete."""
        if not self._tested:
            self._tested = True
            raise MPI.Exception(MPI.ERR_PROC_FAILED)
        return True


def receive_half_of_the_dead() -> None:
    """Receive a header whose sender dies before it sends the rest."""
    losses: list[None] = []
    box = channel.Channel(MPI.COMM_SELF, 0, np.zeros(1), lambda: losses.append(None))
    half = channel.Message(7, channel.ARRIVAL, 1, 1, 1, 0, 0, 0, [0.1], channel.EMPTY)
    box.incoming[7] = deque([channel._Incoming(half, deque([Failed()]), 0.0)])
    assert box.completed() is box.completed() is None
    assert len(losses) == 1
    box.close()


send_messages()
send_to_the_dead()
if is_loss(MPI.Exception(MPI.ERR_PROC_FAILED)):  # an error that not all MPIs know
    receive_half_of_the_dead()
print('"all arrived"')
